"""Decode steps replayed from what was captured. There is no CUDA here: what is captured is the list of operations.

As in a CUDA graph every launch and every tensor operation is repeated with the very arguments it had: the same tensors,
the same grids, the same numbers. What the host decided while capturing stays decided.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.on_gpu.serving import load, random_jobs, serve
from benchmarks.on_gpu.shapes import LLAMA_8B, QWEN_30B
from torch.utils._python_dispatch import TorchDispatchMode

from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.graphs import Captured, DecodeGraphs
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_kernels.triton.launch import recorded

SIZES = RunnerSizes(max_num_seqs=3, max_model_len=64, max_num_batched_tokens=16)


class OperationList(TorchDispatchMode):
    """Runs what it sees, and can repeat it. Operations inside the interpreter belong to their launch."""

    def __init__(self):
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, Any]] = []
        self.replays = 0
        self._launching = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not self._launching:
            self.operations.append((function, args, kwargs or {}, result))
        return result

    def launch(self, kernel, grid, args, options):
        if all(grid):
            self._run(kernel, grid, args, options)
            self.operations.append((None, (kernel, grid, args), options, None))

    def replay(self):
        self.replays += 1
        for function, args, options, result in self.operations:
            if function is None:
                self._run(*args, options)
                continue
            again = function(*args, **options)
            # A new result goes where the first one was: that is the tensor the following operations read.
            if isinstance(again, torch.Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)

    def _run(self, kernel, grid, args, options):
        self._launching = True
        kernel[grid](*args, **options)
        self._launching = False


@pytest.fixture
def captured(monkeypatch):
    """What was captured, by size."""
    found: dict[int, OperationList] = {}

    def capture(graphs, size, planner, compute):
        found[size] = OperationList()
        with recorded(found[size].launch), found[size]:
            x, logits = compute()
        graphs._captured[size] = Captured(size, planner, found[size], x, logits)

    monkeypatch.setattr(DecodeGraphs, "capture", capture)
    return found


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("shape", [LLAMA_8B.tiny(), QWEN_30B.tiny()], ids=lambda shape: shape.name)
def test_replayed_steps_sample_what_eager_ones_do(captured, shape, invariant):
    eager = load(shape, torch.device("cpu"), torch.float32, SIZES, invariant=invariant)
    # A size is missing: rows of nobody pad two rows to three.
    runner = GpuRunner(eager.model, SIZES, invariant=invariant, graph_sizes=(1, 3))
    # Of different lengths, so that there are steps of three rows, of two and of one.
    jobs = [job._replace(tokens=4 + 3 * place) for place, job in enumerate(random_jobs(3, shape.vocab, (3, 9), (1, 1)))]
    _, wanted = serve(eager, jobs, temperature=0.9)
    _, found = serve(eager._replace(runner=runner), jobs, temperature=0.9)
    assert found == wanted
    assert captured[1].replays > 0
    assert captured[3].replays > 0


def test_graphs_write_one_tensor_of_logits(captured):
    loaded = load(LLAMA_8B.tiny(), torch.device("cpu"), torch.float32, SIZES)
    runner = GpuRunner(loaded.model, SIZES, graph_sizes=(1, 2, 3))
    graphs = runner._computer._graphs
    assert len({graphs.find(rows).logits.data_ptr() for rows in (1, 2, 3)}) == 1
    assert graphs.find(4) is None
