"""A graph's attention has a fixed number of programs: few enough to cost nothing, enough to fill the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_engine.model.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, RopeSpec
from octavo_engine.worker.gpu.assemble import Assembled
from octavo_engine.worker.gpu.attention import AttentionPlanner
from octavo_engine.worker.gpu.cache import GpuLayout
from octavo_kernels.triton.configurations import Configurations
from octavo_kernels.triton.targets import SM_90

HEADS, KV_HEADS = 32, 8
CONTEXT = 131072


def planner(rows: int, *, invariant: bool, context: int = CONTEXT) -> AttentionPlanner:
    norm = NormSpec(1e-5)
    attention = AttentionSpec(HEADS, KV_HEADS, 128, RopeSpec(128, 1e4), 0.1)
    spec = ModelSpec("any", 100, 64, context, (LayerSpec(attention, MLPSpec(64), norm, norm),), norm, True)
    layout = GpuLayout(spec, 16, "bfloat16", torch.device("cpu"))
    return AttentionPlanner(
        layout, Configurations(SM_90), max_tokens=rows, max_rows=rows, max_context=context, invariant=invariant,
        fixed=True,
    )  # fmt: skip


def decode(contexts: list[int]) -> tuple[Assembled, np.ndarray]:
    rows = len(contexts)
    blocks = -(-max(contexts) // 16)
    tables = np.arange(rows * blocks, dtype=np.int32).reshape(1, rows, blocks)
    offsets, slots = np.arange(rows + 1, dtype=np.int32), np.arange(rows)
    table = np.zeros((rows, 8), dtype=np.int32)
    return Assembled(table, offsets, np.array(contexts, np.int32), slots, offsets[:-1], rows, rows, 1), tables


def programs(contexts: list[int], *, invariant: bool, size: int = 0) -> tuple[int, int]:
    """Return the programs with work, and those that are launched."""
    step, tables = decode(contexts)
    (found,) = planner(size or len(contexts), invariant=invariant).plan(step, tables)
    return int(found.work.lists[0]) * KV_HEADS, found.work.items * KV_HEADS


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("size", [1, 8, 64, 256])
def test_few_of_its_programs_have_nothing_to_do(size, invariant):
    _, launched = programs([100], invariant=invariant, size=size)
    # Measured in programs a processor: a device starts as many in the time of a small product.
    assert launched / SM_90.processors <= 2 * size * KV_HEADS / SM_90.processors + 9


@pytest.mark.parametrize("invariant", [False, True])
def test_a_long_row_alone_fills_the_device(invariant):
    working, launched = programs([CONTEXT], invariant=invariant)
    assert 2 * SM_90.processors <= working <= launched


@pytest.mark.parametrize("invariant", [False, True])
def test_a_long_row_among_short_ones_is_still_cut(invariant):
    working, launched = programs([CONTEXT, *[200] * 63], invariant=invariant)
    assert 64 * KV_HEADS + 2 * SM_90.processors - KV_HEADS <= working <= launched


def test_short_contexts_need_no_merges():
    step, tables = decode([100, 50])
    (found,) = planner(2, invariant=False, context=128).plan(step, tables)
    assert (found.work.merges, found.work.items) == (0, 4)
