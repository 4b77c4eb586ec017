"""Weights of linear layers as the GPU kernels read them.

Layouts, of a weight [N, K] (stacked experts have one more dimension in front of every tensor):

    dense   values [N, K]        float32, bfloat16 or float16
    fp8     values [N, K]        float8_e4m3fn                     scales [N] float32
    int8    values [K/32, N, 32] int8                              scales [⌈K/64⌉, N] int32: two groups' float16
    int4    values [K/32, N, 16] uint8, low nibbles: inputs 0..15  scales [K/32, N] int32: float16 scale, offset above
            of the group, high nibbles: inputs 16..31

An int8 value is scale · q, an int4 value scale · q + offset. Groups are 32 inputs of one row and their scales float16,
as GGUF has them, so nothing of a file is lost. The groups' dimension comes first because a program reads all of its
rows' values of one group at once: they are one contiguous piece of memory, and so are their scales. These come in words
of two because the hardware copies asynchronously only from 4 bytes a lane on: a scale that is waited for in every step
would cost more than its bytes. An int4 group's halves are two products, so that nibbles are unpacked where they lie.
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

    @property
    def rows(self) -> int:
        """N, the output features."""
        return self.values.shape[-2]

    @property
    def columns(self) -> int:
        """K, the input features."""
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
        begin, count = first // GROUP, (last - first) // GROUP
        values, scales = self.values.narrow(-3, begin, count).contiguous(), self.scales
        assert scales is not None
        if self.kind == "int8":
            # Groups that shared a word may part here, and others meet.
            return Weight(self.kind, values, _pair_groups(_group_scales(self).narrow(-2, begin, count)))
        return Weight(self.kind, values, scales.narrow(-2, begin, count).contiguous())

    def _parts(self) -> list[Tensor]:
        return [self.values] if self.scales is None else [self.values, self.scales]

    def _replaced(self, values: Tensor, scales: Tensor | None = None) -> Weight:
        return Weight(self.kind, values, scales)

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
        return Weight(kind, _groups_first(quants), _pair_groups(_groups_first(scales)))
    low, high = groups.aminmax(dim=-1)
    offsets = low.clamp(-_FP16_MAX, _FP16_MAX).half()
    scales = ((high - offsets.float()) / 15).clamp(0, _FP16_MAX).half()
    shifted = (groups - offsets.float()[..., None]) / _nonzero(scales.float())[..., None]
    quants = torch.round(shifted).clamp(0, 15).to(torch.uint8)
    packed = quants[..., : GROUP // 2] | (quants[..., GROUP // 2 :] << 4)
    return Weight(kind, _groups_first(packed), _words(_groups_first(scales), _groups_first(offsets)))


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
    halves = np.ascontiguousarray(blocks[..., : 2 * heads]).view("<f2")
    scales = _groups_first(torch.from_numpy(halves[..., 0].astype(np.float16)))
    quants = np.ascontiguousarray(blocks[..., 2 * heads :])
    if kind == "Q8_0":
        return Weight("int8", _groups_first(torch.from_numpy(quants.view(np.int8))), _pair_groups(scales))
    if kind == "Q4_1":
        offsets = _groups_first(torch.from_numpy(halves[..., 1].astype(np.float16)))
    else:
        # Q4_0 is scale · (q - 8): eight times a float16 is one, and the sum is exact as well.
        offsets = scales * -8
        if not bool(torch.isfinite(offsets).all()):
            raise ValueError("The Q4_0 weight has scales beyond 8188, no model's; its file is damaged: fetch it again.")
    return Weight("int4", _groups_first(torch.from_numpy(quants)), _words(scales, offsets))


def dequantize(weight: Weight) -> Tensor:
    """Return the weight's values, float32 [N, K] or [experts, N, K]."""
    values, scales = weight.values, weight.scales
    if scales is None:
        return values.float()
    if weight.kind == "fp8":
        return values.float() * scales[..., None]
    if weight.kind == "int8":
        groups = values.float() * _group_scales(weight).float()[..., None]
    else:
        groups = torch.cat([values & 0xF, values >> 4], dim=-1).float()
        halves = _halves(scales).float()
        groups = groups * halves[..., :1] + halves[..., 1:]
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


def _groups_first(groups: Tensor) -> Tensor:
    """Turn [.., N, K/32, …] of values, or [.., N, K/32] of scales (float16), to begin with the groups."""
    if groups.dtype == torch.float16:
        return groups.transpose(-1, -2).contiguous()
    return groups.transpose(-2, -3).contiguous()


def _words(low: Tensor, high: Tensor) -> Tensor:
    """Return int32 words of float16 halves."""
    return torch.stack([low, high], dim=-1).reshape(-1).view(torch.int32).reshape(low.shape)


def _halves(words: Tensor) -> Tensor:
    """Return the float16 halves of words, as one more dimension."""
    return words.reshape(-1).view(torch.float16).reshape(*words.shape, 2)


def _pair_groups(scales: Tensor) -> Tensor:
    """Return float16 scales [.., K/32, N] as words of two groups each; beyond the last is zero."""
    if scales.shape[-2] % 2:
        scales = torch.cat([scales, torch.zeros_like(scales[..., :1, :])], dim=-2)
    return _words(scales[..., 0::2, :], scales[..., 1::2, :])


def _group_scales(weight: Weight) -> Tensor:
    """Return an int8 weight's float16 scales [.., K/32, N]."""
    assert weight.scales is not None
    pairs = _halves(weight.scales).movedim(-1, -2)
    return pairs.reshape(*pairs.shape[:-3], -1, pairs.shape[-1])[..., : weight.columns // GROUP, :]


def _nonzero(scales: Tensor) -> Tensor:
    """Return scales to divide by: an all-zero group's is 1."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def _check_float(values: Tensor, kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"There is no weight kind {kind!r}; take one of {', '.join(KINDS)}.")
    if values.dtype not in DENSE_TYPES:
        raise ValueError(f"Weights are made from float32, bfloat16 or float16, not {values.dtype}; convert them first.")
    if values.dim() not in (2, 3) or 0 in values.shape:
        raise ValueError(f"A weight is [N, K] or [experts, N, K] and never empty, not {tuple(values.shape)}.")
    if kind in ("int8", "int4") and values.shape[-1] % GROUP:
        raise ValueError(
            f"{kind} weights have groups of {GROUP} inputs, and {values.shape[-1]} is no multiple; use dense or fp8."
        )
