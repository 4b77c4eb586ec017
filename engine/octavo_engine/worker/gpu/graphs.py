"""Decode steps as CUDA graphs: captured once for some sizes, replayed for every step that fits one of them.

A step of many small launches is bound by launching them; a replay is one. The graphs share one pool of memory: they
never run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from octavo_engine.worker.gpu.attention import AttentionPlanner

GRAPH_SIZES: Final = (1, 2, 4, *range(8, 257, 8))
"""Rows of the decode steps that are captured: a step is padded to the next of them, at most by seven rows."""


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the sizes to capture for steps of up to `max_num_seqs` rows; larger steps than the last are eager."""
    fitting = tuple(size for size in GRAPH_SIZES if size < max_num_seqs)
    return (*fitting, min(max_num_seqs, GRAPH_SIZES[-1])) if max_num_seqs > 0 else ()


class Captured(NamedTuple):
    """A graph of decode steps of `size` rows. planner: plans into the buffers it reads. x, logits: what it writes."""

    size: int
    planner: AttentionPlanner
    graph: Any
    x: Tensor
    logits: Tensor

    def replay(self) -> None:
        """Queue it."""
        self.graph.replay()


class DecodeGraphs:
    """The captured graphs, by size."""

    def __init__(self) -> None:
        """Begin with none."""
        self._captured: dict[int, Captured] = {}
        self._pool: Any = None
        self.seconds = 0.0
        """Spent on capturing."""

    def find(self, rows: int) -> Captured | None:
        """Return the smallest graph that holds `rows` rows, None if there is none."""
        sizes: Iterable[int] = (size for size in self._captured if size >= rows)
        size = min(sizes, default=0)
        return self._captured[size] if size else None

    def capture(self, size: int, planner: AttentionPlanner, compute: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Capture what `compute` queues: it must read and write fixed tensors, and return (x, logits)."""
        began = time.perf_counter()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        # Once before: kernels are loaded, and libraries take their workspaces, outside of the graph.
        with torch.cuda.stream(stream):
            compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Of this thread's calls only: NCCL's own threads ask for their events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            x, logits = compute()
        self._pool = self._pool or graph.pool()
        self._captured[size] = Captured(size, planner, graph, x, logits)
        self.seconds += time.perf_counter() - began
