"""Weights of linear layers as the GPU kernels read them.

Layouts, of a weight [N, K] (stacked experts have one more dimension in front of every tensor):

    dense   values [N, K]        float32, bfloat16 or float16
    fp8     values [N, K]        float8_e4m3fn                     scales [N] float32
    int8    values [K/32, N, 32] int8    scales [⌈K/64⌉, N] int32: float16 of two groups, the first one's low
    int4    values [⌈K/64⌉, N, 32] uint8: two groups, the first one's in the low nibbles
            scales [2 · ⌈K/64⌉, N] int32: float16 scale, and offset above it, of a group

An int8 value is scale · q, an int4 value scale · q + offset. Groups are 32 inputs of one row and their scales float16,
as GGUF has them, so nothing of a file is lost; a last group without a second one is paired with zeros. The groups'
dimension comes first because a program reads all of its rows' values of one group at once: they are one contiguous
piece of memory, and so are their scales. These come in words of two because the hardware copies asynchronously only
from 4 bytes a lane on: a scale that is waited for in every step would cost more than its bytes. Nibbles of a byte
belong to different groups so that each product is of a whole group, and they are unpacked where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP: Final = 32
"""Inputs that share a scale."""

KINDS: Final = ("dense", "int8", "int4", "fp8")
DENSE_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)

_FP8_MAX: Final = 448.0
_FP16_MAX: Final = 65504.0
_GGUF_BYTES: Final = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


class Weight(NamedTuple):
    """A weight [N, K], or stacked experts' [experts, N, K], in the layout of its kind (see the module)."""

    kind: str
    values: Tensor
    scales: Tensor | None = None
    odd: bool = False
    """Whether an int4 weight's number of groups is odd: its last nibbles are none's."""

    @property
    def rows(self) -> int:
        """N, the output features."""
        return self.values.shape[-2]

    @property
    def columns(self) -> int:
        """K, the input features."""
        if self.kind == "int4":
            return self.values.shape[-3] * 2 * GROUP - self.odd * GROUP
        return self.values.shape[-3] * GROUP if self.grouped else self.values.shape[-1]

    @property
    def grouped(self) -> bool:
        """Whether groups of inputs have scales."""
        return self.kind in ("int8", "int4")

    @property
    def experts(self) -> int | None:
        """How many weights are stacked, None for a single one."""
        return self.values.shape[0] if self.values.dim() == (4 if self.grouped else 3) else None

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return sum(part.nbytes for part in self._parts())

    def to(self, device: torch.device | str) -> Weight:
        """Return the weight on `device`."""
        return self._replaced(*(part.to(device) for part in self._parts()))

    def shard_rows(self, first: int, last: int) -> Weight:
        """Return output features first..last as a weight of their own, as a column-parallel layer's rank holds."""
        self._check_range(first, last, self.rows, "Output")
        dimension = -2
        shards = [self.values.narrow(dimension, first, last - first)]
        shards += [part.narrow(-1, first, last - first) for part in self._parts()[1:]]
        return self._replaced(*(shard.contiguous() for shard in shards))

    def shard_columns(self, first: int, last: int) -> Weight:
        """Return input features first..last (whole groups) as a weight, as a row-parallel layer's rank holds."""
        self._check_range(first, last, self.columns, "Input")
        if not self.grouped:
            return Weight(self.kind, self.values.narrow(-1, first, last - first).contiguous(), self.scales)
        if first % GROUP or last % GROUP:
            raise ValueError(
                f"Input features {first}..{last} of an {self.kind} weight cut a group of {GROUP}; "
                "cut at multiples of it."
            )
        # Groups that shared a byte or a word may part here, and others meet.
        begin, count = first // GROUP, (last - first) // GROUP
        quants, scales = (part.narrow(-3, begin, count) for part in _groups(self))
        return _pack(self.kind, quants, scales)

    def _parts(self) -> list[Tensor]:
        return [self.values] if self.scales is None else [self.values, self.scales]

    def _replaced(self, values: Tensor, scales: Tensor | None = None) -> Weight:
        return Weight(self.kind, values, scales, self.odd)

    @staticmethod
    def _check_range(first: int, last: int, size: int, what: str) -> None:
        if not 0 <= first < last <= size:
            raise ValueError(f"{what} features {first}..{last} are no part of a weight's {size}; give a range within.")


def quantize(weight: Tensor | NDArray[Any], kind: str) -> Weight:
    """Return a float weight [N, K] or [experts, N, K] in `kind`, rounded to nearest; `dense` keeps its type.

    int8: scale = max |w| / 127 of the group. int4: scale and offset from the group's range, as in GGUF's Q4_1. fp8:
    scale = max |w| / 448 of the row. Raises ValueError for another kind or shape, and values that are not finite.
    """
    values = torch.from_numpy(weight) if isinstance(weight, np.ndarray) else weight
    _check_float(values, kind)
    if kind == "dense":
        return Weight(kind, values.contiguous())
    values = values.float()
    if not bool(torch.isfinite(values).all()):
        raise ValueError("The weight holds values that are not finite; such a checkpoint cannot be quantised.")
    if kind == "fp8":
        row_scales = _nonzero(values.abs().amax(-1) / _FP8_MAX)
        return Weight(kind, (values / row_scales[..., None]).to(torch.float8_e4m3fn).contiguous(), row_scales)
    groups = values.reshape(*values.shape[:-1], -1, GROUP)
    if kind == "int8":
        scales = (groups.abs().amax(-1) / 127).clamp(max=_FP16_MAX).half()
        quants = torch.round(groups / _nonzero(scales.float())[..., None]).clamp(-127, 127).to(torch.int8)
        return _pack(kind, quants.movedim(-2, -3), scales[..., None].movedim(-2, -3))
    low, high = groups.aminmax(dim=-1)
    offsets = low.clamp(-_FP16_MAX, _FP16_MAX).half()
    scales = ((high - offsets.float()) / 15).clamp(0, _FP16_MAX).half()
    shifted = (groups - offsets.float()[..., None]) / _nonzero(scales.float())[..., None]
    quants = torch.round(shifted).clamp(0, 15).to(torch.uint8)
    return _pack(kind, quants.movedim(-2, -3), torch.stack([scales, offsets], dim=-1).movedim(-2, -3))


def from_gguf(kind: str, plane: NDArray[np.uint8]) -> Weight:
    """Return a GGUF tensor's weight, of exactly its values: Q8_0 as int8, Q4_0 and Q4_1 as int4.

    plane: uint8 [N, bytes per row] or [experts, N, bytes per row], as in the file. Raises ValueError for other kinds
    and shapes.
    """
    size = _GGUF_BYTES.get(kind)
    if size is None:
        kinds = ", ".join(_GGUF_BYTES)
        raise ValueError(f"GGUF kind {kind} has no layout on the GPU (those of {kinds} have); dequantise it first.")
    if plane.dtype != np.uint8 or plane.ndim not in (2, 3) or plane.shape[-1] % size or 0 in plane.shape:
        raise ValueError(
            f"A {kind} plane is uint8 [N, bytes per row] of blocks of {size} bytes, not {plane.dtype} {plane.shape}; "
            "give it as the file holds it."
        )
    blocks = plane.reshape(*plane.shape[:-1], -1, size)
    heads = 2 if kind == "Q4_1" else 1
    halves = np.ascontiguousarray(blocks[..., : 2 * heads]).view("<f2").astype(np.float16)
    scales = torch.from_numpy(halves).movedim(-2, -3)
    quants = torch.from_numpy(np.ascontiguousarray(blocks[..., 2 * heads :])).movedim(-2, -3)
    if kind == "Q8_0":
        return _pack("int8", quants.view(torch.int8), scales)
    if kind == "Q4_0":
        # scale · (q - 8): eight times a float16 is one, and so is every value.
        scales = torch.cat([scales, scales * -8], dim=-1)
        if not bool(torch.isfinite(scales).all()):
            raise ValueError("The Q4_0 weight has scales beyond 8188, no model's; its file is damaged: fetch it again.")
    return _pack("int4", torch.cat([quants & 0xF, quants >> 4], dim=-1), scales)


def empty_weight(
    kind: str, rows: int, columns: int, dtype: torch.dtype, device: torch.device | str, experts: int | None = None
) -> Weight:
    """Return an uninitialised weight of a kind; dtype is a dense one's. On `meta` it is a layout to compile for."""
    _check_shape(kind, (rows, columns))
    stacked = () if experts is None else (experts,)
    groups, pairs = columns // GROUP, -(-columns // (2 * GROUP))

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((*stacked, *shape), dtype=dtype, device=device)

    if kind == "dense":
        return Weight(kind, empty(rows, columns, dtype=dtype))
    if kind == "fp8":
        return Weight(kind, empty(rows, columns, dtype=torch.float8_e4m3fn), empty(rows, dtype=torch.float32))
    if kind == "int8":
        return Weight(kind, empty(groups, rows, GROUP, dtype=torch.int8), empty(pairs, rows, dtype=torch.int32))
    values, scales = empty(pairs, rows, GROUP, dtype=torch.uint8), empty(2 * pairs, rows, dtype=torch.int32)
    return Weight(kind, values, scales, bool(groups % 2))


def dequantize(weight: Weight) -> Tensor:
    """Return the weight's values, float32 [N, K] or [experts, N, K]."""
    values, scales = weight.values, weight.scales
    if scales is None:
        return values.float()
    if weight.kind == "fp8":
        return values.float() * scales[..., None]
    quants, halves = (part.float() for part in _groups(weight))
    groups = quants * halves[..., :1]
    if weight.kind == "int4":
        groups = groups + halves[..., 1:]
    return groups.movedim(-3, -2).flatten(-2)


def join_rows(weights: Sequence[Weight]) -> Weight:
    """Return weights of the same kind and inputs as one, below each other (as q, k and v, or gate and up).

    Raises ValueError for weights whose kinds, types or inputs differ.
    """
    layouts = {(weight.kind, weight.columns, tuple(part.dtype for part in weight._parts())) for weight in weights}
    if len(layouts) != 1:
        raise ValueError(f"Only weights of one kind, type and number of inputs join, not {sorted(map(str, layouts))}.")
    values = torch.cat([weight.values for weight in weights], dim=-2)
    others = zip(*(weight._parts()[1:] for weight in weights), strict=True)
    return weights[0]._replaced(values, *(torch.cat(list(parts), dim=-1) for parts in others))


def stack(weights: Sequence[Weight]) -> Weight:
    """Return equally shaped weights of one kind as the experts of one. Raises ValueError where they differ."""
    layouts = {(weight.kind, *((part.dtype, part.shape) for part in weight._parts())) for weight in weights}
    if len(layouts) != 1:
        raise ValueError(f"Only experts of one kind and shape stack, not {sorted(map(str, layouts))}.")
    parts = zip(*(weight._parts() for weight in weights), strict=True)
    return weights[0]._replaced(*(torch.stack(list(part)) for part in parts))


def _pack(kind: str, quants: Tensor, scales: Tensor) -> Weight:
    """Return the weight of quants [.., K/32, N, 32] and float16 scales [.., K/32, N, 1], or 2 with offsets."""
    odd = bool(quants.shape[-3] % 2)
    if odd:
        scales = torch.cat([scales, torch.zeros_like(scales[..., :1, :, :])], dim=-3)
    if kind == "int8":
        pairs = torch.cat([scales[..., 0::2, :, :], scales[..., 1::2, :, :]], dim=-1)
        return Weight(kind, quants.contiguous(), _words(pairs))
    if odd:
        quants = torch.cat([quants, torch.zeros_like(quants[..., :1, :, :])], dim=-3)
    return Weight(kind, quants[..., 0::2, :, :] | (quants[..., 1::2, :, :] << 4), _words(scales), odd)


def _groups(weight: Weight) -> tuple[Tensor, Tensor]:
    """Return what `_pack` was given."""
    assert weight.scales is not None
    count, words = weight.columns // GROUP, weight.scales.reshape(-1)
    scales = words.view(torch.float16).reshape(*weight.scales.shape, 2)
    if weight.kind == "int8":
        return weight.values, _interleave(scales[..., :1], scales[..., 1:])[..., :count, :, :]
    quants = _interleave(weight.values & 0xF, weight.values >> 4)
    return quants[..., :count, :, :], scales[..., :count, :, :]


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """Return [.., 2 · pairs, N, …] of the even and the odd ones [.., pairs, N, …]."""
    both = torch.stack([even, odd], dim=-3)
    return both.reshape(*even.shape[:-3], -1, *even.shape[-2:])


def _words(halves: Tensor) -> Tensor:
    """Return float16 halves [.., 2], low first, as int32 words."""
    return halves.reshape(-1).view(torch.int32).reshape(halves.shape[:-1])


def _nonzero(scales: Tensor) -> Tensor:
    """Return scales to divide by: an all-zero group's is 1."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def _check_float(values: Tensor, kind: str) -> None:
    if values.dtype not in DENSE_TYPES:
        raise ValueError(f"Weights are made from float32, bfloat16 or float16, not {values.dtype}; convert them first.")
    _check_shape(kind, tuple(values.shape))


def _check_shape(kind: str, shape: tuple[int, ...]) -> None:
    if kind not in KINDS:
        raise ValueError(f"There is no weight kind {kind!r}; take one of {', '.join(KINDS)}.")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"A weight is [N, K] or [experts, N, K] and never empty, not {shape}.")
    if kind in ("int8", "int4") and shape[-1] % GROUP:
        raise ValueError(
            f"{kind} weights have groups of {GROUP} inputs, and {shape[-1]} is no multiple; use dense or fp8."
        )
