"""Which launch parameters serve a shape: a checked-in table per architecture, and a heuristic where it has no entry.

`configurations/<target>.json` has one entry for a kernel and a class of shapes. Shapes are first put into classes
(16, 32, 64 … rows: the next larger one), so that all that can be selected is known and is compiled ahead of time.
Nothing is tuned at serving time; `benchmarks/gpu.py --tune` measures and rewrites a table with `write_table`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from octavo_kernels.triton import heuristics
from octavo_kernels.triton.attention_plan import AttentionTuning
from octavo_kernels.triton.grouped import GroupedTuning
from octavo_kernels.triton.linear import LinearTuning
from octavo_kernels.triton.lora import LoraTuning
from octavo_kernels.triton.rope_cache import RopeCacheTuning
from octavo_kernels.triton.rows import RowsTuning
from octavo_kernels.triton.sampling import SamplingTuning
from octavo_kernels.triton.targets import Target, fp8_refusal

TABLES: Final = Path(__file__).parent / "configurations"

STEPS: Final = ("decode", "prefill", "invariant")
"""Kinds of step. decode: each row has one query; prefill: some row has more; invariant: any step, where results may not
depend on the company, so that one configuration serves all."""
HEAD_DIMS: Final = (64, 128, 256)
GROUPS: Final = (16, 32)
"""Query heads of one key/value head, as rows of a tile: matrix units take 16 at the least."""
ROWS: Final = (16, 32, 64, 128)
"""Rows of a product; more are of the last class."""
ANY_ROWS: Final = 0
"""The class of products whose configuration may not depend on their rows."""
WIDTHS: Final = (1024, 2048, 4096, 8192, 16384)
"""Of the residual stream and of what is copied row by row."""
MOST_ROWS_OF_DECODE: Final = 256
"""Rows of a step above which adapters' rows are taken to come in chunks: many of one adapter."""
RANKS: Final = (16, 32)
"""Of a bank of adapters; larger ones are taken in steps of the last class."""
KINDS: Final = ("dense", "int8", "int4", "fp8")
_NEAR: Final = 1.0
"""How far a measured weight may be from the one at hand: a factor of 2 in its size, as a logarithm."""

Shape = Mapping[str, int | str]


class Entry(NamedTuple):
    """What serves a class of shapes: the kernel's own tuning tuple."""

    kernel: str
    shape: Shape
    tuning: Any


class FewRows(NamedTuple):
    """The most rows for which a weight is multiplied as it is stored."""

    rows: int


_TUNINGS: Final[dict[str, type[Any]]] = {
    "attention": AttentionTuning,
    "linear": LinearTuning,
    "few_rows": FewRows,
    "grouped": GroupedTuning,
    "lora": LoraTuning,
    "sampling": SamplingTuning,
    "rows": RowsTuning,
    "rope_cache": RopeCacheTuning,
}


class Configurations:
    """The configurations of one target. `for_target` loads those that are checked in."""

    def __init__(self, target: Target, entries: Iterable[Entry] = ()) -> None:
        self.target = target
        self.entries = tuple(entries)
        self._by_shape = {_key(entry.kernel, entry.shape): entry.tuning for entry in self.entries}

    def attention(self, step: str, head_dim: int, group_size: int, cache_dtype: torch.dtype) -> AttentionTuning:
        """Return the configuration of paged attention in a kind of step. Raises ValueError for what is not served."""
        if step not in STEPS:
            raise ValueError(f"There is no kind of step {step!r}: choose from {', '.join(STEPS)}.")
        self._require(cache_dtype)
        shape: Shape = {
            "step": step,
            "head_dim": _class_of(head_dim, HEAD_DIMS, "values in a head"),
            "group": _class_of(group_size, GROUPS, "query heads on one key/value head"),
            "cache_bytes": cache_dtype.itemsize,
        }
        found: AttentionTuning = self._select("attention", shape, heuristics.attention)
        return found

    def linear(
        self, kind: str, rows: int, features: int, inputs: int, dtype: torch.dtype, *, invariant: bool = False
    ) -> LinearTuning:
        """Return the configuration of `rows` rows of a type times a weight [features, inputs] of a kind.

        invariant: the same whatever the rows. Raises ValueError for a kind that is not served.
        """
        self._require_kind(kind)
        rows = ANY_ROWS if invariant else rows_class(rows)
        shape: Shape = {"kind": kind, "rows": rows, "bytes": dtype.itemsize}
        found = self._nearest("linear", shape, features, inputs)
        return found or heuristics.linear(self.target, rows, features, inputs, dtype.itemsize)

    def grouped(
        self, kind: str, rows: int, choices: int, experts: int, dtype: torch.dtype, *, invariant: bool = False
    ) -> GroupedTuning:
        """Return the configuration of both products of a mixture's experts: `rows` rows choose `choices` experts each.

        invariant: the same whatever the rows. Raises ValueError for a kind that is not served.
        """
        self._require_kind(kind)
        each = ANY_ROWS if invariant else rows_class(-(-rows * choices // experts))
        shape: Shape = {"kind": kind, "rows": each, "bytes": dtype.itemsize}
        found: GroupedTuning = self._select(
            "grouped", shape, lambda of, kind, rows, bytes: heuristics.grouped(of, rows, bytes)
        )
        return found

    def lora(self, rank: int, rows: int, dtype: torch.dtype) -> LoraTuning:
        """Return the configuration of adapters of a bank of this rank, for `rows` rows of a type.

        What a row's bits depend on is the same for any rows.
        """
        found: LoraTuning = self._select(
            "lora", _lora_shape(rank, rows, dtype), lambda _, rank, rows, bytes: heuristics.lora(rank, rows, bytes)
        )
        return found

    def sampling(self) -> SamplingTuning:
        """Return the configuration of sampling."""
        found: SamplingTuning = self._select("sampling", {}, lambda _: SamplingTuning())
        return found

    def few_rows(self, kind: str) -> int:
        """Return the most rows for which `linear` is the faster way; more go to the vendor's library."""
        self._require_kind(kind)
        found = self._by_shape.get(_key("few_rows", {"kind": kind}))
        return heuristics.few_rows(kind) if found is None else int(found.rows)

    def rows(self, width: int) -> RowsTuning:
        """Return the configuration of norms, activations and copies of rows of this width."""
        wide = next((each for each in WIDTHS if width <= each), WIDTHS[-1])
        found: RowsTuning = self._select("rows", {"width": wide}, lambda _, width: heuristics.rows(width))
        return found

    def rope_cache(self, head_dim: int) -> RopeCacheTuning:
        """Return the configuration of the rotation and the write into the cache."""
        shape = {"head_dim": _class_of(head_dim, HEAD_DIMS, "values in a head")}
        found: RopeCacheTuning = self._select("rope_cache", shape, lambda _, head_dim: heuristics.rope_cache(head_dim))
        return found

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of weights that are served."""
        return tuple(kind for kind in KINDS if self.target.fp8 or kind != "fp8")

    def cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the types of KV cache that are served, one of each size."""
        return (*((torch.float8_e4m3fn,) if self.target.fp8 else ()), torch.bfloat16, torch.float32)

    def selectable(self) -> Iterator[Entry]:
        """Return all that can be selected: each class with its configuration, from the table or by rule."""
        for step, head_dim, group, dtype in product(STEPS, HEAD_DIMS, GROUPS, self.cache_dtypes()):
            shape: Shape = {"step": step, "head_dim": head_dim, "group": group, "cache_bytes": dtype.itemsize}
            yield Entry("attention", shape, self.attention(step, head_dim, group, dtype))
        for kind, rows, size in product(self.kinds(), (*ROWS, ANY_ROWS), (2, 4)):
            shape = {"kind": kind, "rows": rows, "bytes": size}
            for tuning in dict.fromkeys([*self._known("linear", shape), *self._linear_by_rule(rows, size)]):
                yield Entry("linear", shape, tuning)
            yield Entry("grouped", shape, self.grouped(kind, rows, 1, 1, _of_bytes(size), invariant=not rows))
        for rank, rows, size in product(RANKS, (1, MOST_ROWS_OF_DECODE + 1), (2, 4)):
            dtype = _of_bytes(size)
            yield Entry("lora", _lora_shape(rank, rows, dtype), self.lora(rank, rows, dtype))
        yield Entry("sampling", {}, self.sampling())
        for width in WIDTHS:
            yield Entry("rows", {"width": width}, self.rows(width))
        for head_dim in HEAD_DIMS:
            yield Entry("rope_cache", {"head_dim": head_dim}, self.rope_cache(head_dim))

    def _linear_by_rule(self, rows: int, size: int) -> list[LinearTuning]:
        base = heuristics.linear_base(self.target, rows, size)
        most = heuristics.linear_most_splits(rows, size)
        return [base._replace(split_k=split) for split in heuristics.SPLITS if split <= most]

    def _select(self, kernel: str, shape: Shape, rule: Any) -> Any:
        found = self._by_shape.get(_key(kernel, shape))
        return rule(self.target, **shape) if found is None else found

    def _known(self, kernel: str, shape: Shape) -> list[Any]:
        return [each.tuning for each in self.entries if each.kernel == kernel and shape.items() <= each.shape.items()]

    def _nearest(self, kernel: str, shape: Shape, features: int, inputs: int) -> Any:
        """Return the configuration that was measured with the most similar weight, None if none is similar."""
        best, least = None, math.nextafter(_NEAR, 2.0)
        for entry in self.entries:
            if entry.kernel == kernel and shape.items() <= entry.shape.items():
                pairs = ((features, entry.shape["features"]), (inputs, entry.shape["inputs"]))
                distance = sum(abs(math.log2(size / int(measured))) for size, measured in pairs)
                if distance < least:
                    best, least = entry.tuning, distance
        return best

    def _require(self, dtype: torch.dtype) -> None:
        if dtype.itemsize == 1 and (refusal := fp8_refusal(self.target)):
            raise ValueError(refusal)

    def _require_kind(self, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"There is no kind of weight {kind!r}: choose from {', '.join(KINDS)}.")
        if kind == "fp8":
            self._require(torch.float8_e4m3fn)


@functools.cache
def for_target(target: Target) -> Configurations:
    """Return the checked-in configurations of a target; where it has no table, those by rule."""
    path = TABLES / f"{target.name}.json"
    return Configurations(target, read_table(path) if path.exists() else ())


def rows_class(rows: int) -> int:
    """Return the class of a number of rows: the next larger one, the last for more."""
    return next((each for each in ROWS if rows <= each), ROWS[-1])


def read_table(path: Path) -> list[Entry]:
    """Return a table's entries. Raises ValueError for one that is not what `write_table` writes."""
    entries = []
    for found in json.loads(path.read_text())["entries"]:
        if (kind := _TUNINGS.get(found["kernel"])) is None:
            raise ValueError(f"{path}: there is no kernel {found['kernel']!r}: choose from {', '.join(_TUNINGS)}.")
        if set(found["tuning"]) != set(kind._fields):
            wanted, given = ", ".join(kind._fields), ", ".join(found["tuning"])
            raise ValueError(f"{path}: {found['kernel']} needs {wanted} and has {given}: tune this table again.")
        entries.append(Entry(found["kernel"], found["shape"], kind(**found["tuning"])))
    return entries


def write_table(path: Path, entries: Sequence[Entry], measured: str = "") -> None:
    """Write a table, an entry a line, in the order of kernels and shapes. measured: on what, with which versions."""
    lines = [
        json.dumps({"kernel": entry.kernel, "shape": dict(entry.shape), "tuning": entry.tuning._asdict()})
        for entry in sorted(entries, key=lambda entry: _key(entry.kernel, entry.shape))
    ]
    body = ",\n  ".join(lines)
    path.write_text(f'{{"measured": {json.dumps(measured)},\n "entries": [\n  {body}\n ]}}\n')


def _key(kernel: str, shape: Shape) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what is the same for the same class; numbers sort by size."""
    return kernel, tuple(
        (name, f"{value:08}" if isinstance(value, int) else value) for name, value in sorted(shape.items())
    )


def _lora_shape(rank: int, rows: int, dtype: torch.dtype) -> Shape:
    wide = next((each for each in RANKS if rank <= each), RANKS[-1])
    return {"rank": wide, "rows": 16 if rows <= MOST_ROWS_OF_DECODE else 128, "bytes": dtype.itemsize}


def _of_bytes(size: int) -> torch.dtype:
    return torch.bfloat16 if size == 2 else torch.float32


def _class_of(size: int, classes: Sequence[int], what: str) -> int:
    found = next((each for each in classes if 0 < size <= each), None)
    if found is None:
        raise ValueError(f"No attention kernel serves {size} {what}: at most {classes[-1]}; use --device cpu.")
    return found
