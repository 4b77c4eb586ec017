"""What each figure of ours is worth beside the peers': the lines that are promised. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from octavo_engine.bench.peers.point import BATCH, DECODE, MIXED, PREFILL_512
from octavo_engine.bench.peers.schedule import BEST_BATCH
from octavo_engine.bench.statistics import Spread, spread

Key = tuple[str, str]
"""(point, contender)."""


class Line(NamedTuple):
    """One promise: our figure ÷ the best of these entries is at least this."""

    title: str
    ours: Key
    peers: tuple[Key, ...]
    least: float


_FILE: Final = "octavo:file"
_LLAMA: Final = "llamacpp:file"
LINES: Final = (
    Line("same file as OpenVINO GenAI", (MIXED.name, _FILE), ((MIXED.name, "openvino:file"),), 2.0),
    Line("bf16 against vLLM-CPU's", (MIXED.name, "octavo:bf16"), ((MIXED.name, "vllm:bf16"),), 2.0),
    Line("int8 against vLLM-CPU's bf16", (MIXED.name, "octavo:int8"), ((MIXED.name, "vllm:bf16"),), 4.0),
    Line("same file as llama.cpp, both at 64", (BATCH.name, _FILE), ((BATCH.name, _LLAMA),), 8.0),
    Line(
        "same file as llama.cpp at its best batch size",
        (BATCH.name, _FILE),
        ((BATCH.name, _LLAMA), (BEST_BATCH, _LLAMA)),
        5.0,
    ),
    Line(
        "the better of those on the same file",
        (DECODE.name, _FILE),
        ((DECODE.name, _LLAMA), (DECODE.name, "openvino:file")),
        2.0,
    ),
    Line(
        "their best over all formats",
        (DECODE.name, _FILE),
        tuple(
            (DECODE.name, name) for name in (_LLAMA, "llamacpp:Q8_0", "llamacpp:BF16", "openvino:file", "openvino:Q8_0")
        ),
        1.8,
    ),
    Line("same file as OpenVINO GenAI", (PREFILL_512.name, _FILE), ((PREFILL_512.name, "openvino:file"),), 1.5),
)


class Ratio(msgspec.Struct, frozen=True):
    """A line as measured. `best` is the entry compared with: the peers' highest median."""

    title: str
    point: str
    ours: str
    best: str
    ratio: Spread
    """Of each round's figures, paired."""
    least: float

    @property
    def kept(self) -> bool:
        """Whether the median keeps the promise."""
        return self.ratio.median >= self.least


def ratios(figures: Mapping[Key, Sequence[float]], lines: Sequence[Line] = LINES) -> list[Ratio]:
    """Return the lines of which both sides were measured."""
    found = []
    for line in lines:
        peers = [key for key in line.peers if figures.get(key)]
        if not peers or not figures.get(line.ours):
            continue
        best = max(peers, key=lambda key: statistics.median(figures[key]))
        pairs = [ours / theirs for ours, theirs in zip(figures[line.ours], figures[best], strict=False)]
        found.append(Ratio(line.title, line.ours[0], line.ours[1], best[1], spread(pairs), line.least))
    return found
