"""How much of a device is left for the KV cache: what the largest step takes is measured, not guessed."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch

from octavo_engine.worker.gpu.assemble import Assembled
from octavo_engine.worker.gpu.compute import RunnerSizes, StepComputer
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.state import DeviceBatch
from octavo_kernels.triton.step import ROW_FIELDS

CACHE_SHARE: Final = 0.92
"""Of what is left beside the weights and the largest step: the rest is for graphs, and what allocators lose."""


class Profiled(NamedTuple):
    """Bytes of a device: in all, held by weights, taken by the largest step, and left for the KV cache."""

    total: int
    weights: int
    step: int
    left: int

    def __str__(self) -> str:
        """Say it in a log's line."""
        gib = [f"{value / 2**30:.2f} GiB" for value in self]
        return f"{gib[0]} in all, {gib[1]} of weights, {gib[2]} of the largest step, {gib[3]} left for the KV cache"


def profile(model: GpuModel, sizes: RunnerSizes) -> Profiled:
    """Run the largest step once, on a cache of one block, and return what it leaves. For a CUDA device.

    Raises MemoryError if the device has no room for such a step.
    """
    device = model.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    model.layout.allocate([1] * len(model.layout.groups))
    try:
        _run(model, sizes)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"a step of {sizes.max_num_batched_tokens} tokens has no room on the device") from error
    step = torch.cuda.max_memory_allocated(device) - before
    model.layout.caches.clear()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return Profiled(total, before, step, max(0, int((free - step) * CACHE_SHARE)))


def _run(model: GpuModel, sizes: RunnerSizes) -> None:
    """Compute a step of as many tokens as one may have, then the logits of as many rows."""
    batch = DeviceBatch(
        max_num_seqs=sizes.max_num_seqs,
        max_model_len=sizes.max_model_len,
        block_size=model.layout.block_size,
        num_groups=len(model.layout.groups),
        device=model.device,
    )
    computer = StepComputer(model, batch, sizes, invariant=False)
    step = _largest(sizes)
    computed = computer.forward(step)
    logits = computer.logits(computed, step, 0, min(sizes.max_num_seqs, len(step.logit_tokens)))
    # What sampling may come to hold beside them: a copy where log-probabilities are told, and what penalties count.
    held = [logits.clone(), torch.empty((sizes.max_num_seqs, model.vocab_size), dtype=torch.int32, device=model.device)]
    held.clear()


def _largest(sizes: RunnerSizes) -> Assembled:
    """Return a step of nobody's: prompts as long as they may be, as many as it holds tokens for."""
    tokens = sizes.max_num_batched_tokens
    length = min(tokens, sizes.max_model_len)
    counts = np.array([min(length, tokens - start) for start in range(0, tokens, length)], dtype=np.int32)
    counts = counts[: sizes.max_num_seqs]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    table = np.zeros((len(counts), ROW_FIELDS), dtype=np.int32)
    table[:, 0] = table[:, 4] = -1
    table[:, 2], table[:, 3] = counts, offsets[:-1]
    rows = min(sizes.max_num_seqs, int(offsets[-1]))
    return Assembled(
        table,
        offsets,
        counts,
        np.zeros(len(counts), np.int64),
        np.arange(rows, dtype=np.int32),
        rows,
        int(offsets[-1]),
        int(counts.max()),
    )
