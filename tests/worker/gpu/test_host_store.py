"""Evicted blocks in host memory, and blocks as bytes: what is saved comes back, in every type of cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_engine.core.step import BlockTransfer
from octavo_engine.worker.gpu.cache import CACHE_TYPES
from octavo_engine.worker.gpu.host_store import GpuHostStore
from octavo_engine.worker.gpu.precision import GpuPrecision
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, cpu, gpu, prompt_of, tiny_folder
from tests.worker.gpu.building import build_gpu

ERRORS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2, "fp8": 0.2}
"""Of a prompt's log-probabilities, by what its keys and values are rounded to."""


@pytest.fixture(params=sorted(CACHE_TYPES))
def layout(request):
    layout = build_gpu(tiny_folder(), GpuPrecision("float32", "dense", request.param)).layout
    layout.allocate([6])
    random = np.random.default_rng(1).normal(0, 1, tuple(layout.caches[0].shape))
    layout.caches[0].copy_(torch.from_numpy(random).to(layout.type))
    return layout


def test_moves_happen_in_the_order_given(layout):
    """A block is saved before it is loaded over, a place loaded before it is saved over."""
    store = GpuHostStore(layout, [2])
    blocks = [layout.export_block(0, block) for block in range(6)]
    store.move([BlockTransfer(0, 1, 0, saves=True), BlockTransfer(0, 2, 1, saves=True)])
    store.move([BlockTransfer(0, 2, 0, saves=False), BlockTransfer(0, 4, 0, saves=True)])
    store.move([BlockTransfer(0, 5, 1, saves=False), BlockTransfer(0, 1, 0, saves=False)])
    expected = [blocks[0], blocks[4], blocks[1], blocks[3], blocks[4], blocks[2]]
    assert [layout.export_block(0, block) for block in range(6)] == expected


def test_a_block_is_its_bytes(layout):
    blocks = [layout.export_block(0, block) for block in range(6)]
    assert {len(block) for block in blocks} == {layout.groups[0].bytes_per_block}
    layout.import_block(0, 3, blocks[5])
    assert layout.export_block(0, 3) == blocks[5]
    layout.copy_blocks(0, [(0, 1), (1, 2)])
    assert [layout.export_block(0, block) for block in range(6)] == [*[blocks[0]] * 3, blocks[5], *blocks[4:]]
    with pytest.raises(ValueError, match=f"has {len(blocks[0])} bytes, not 3"):
        layout.import_block(0, 0, b"abc")


def test_what_cannot_be_had_is_a_memory_error():
    gpu().layout.allocate([1])
    with pytest.raises(MemoryError):
        GpuHostStore(gpu().layout, [1 << 50])
    with pytest.raises(MemoryError, match="lower --kv-cache-memory"):
        gpu().layout.allocate([1 << 50])


def test_a_sequence_goes_on_from_blocks_that_were_on_the_host():
    driver, prefix = Driver(gpu(), places=4), prompt_of(5, 32)
    first = driver.live(prefix + prompt_of(6, 3), slot=0, **SAMPLED)
    driver.generate(first, 1)
    saves = [BlockTransfer(0, block, 3 - block, saves=True) for block in range(2)]
    other = driver.live(prompt_of(9, 32), slot=1, **SAMPLED)  # into the same blocks
    driver.step([(other, driver.row(other))], admitted=[driver.admission(other)], transfers=saves, released=[0])
    second = driver.live(prefix + prompt_of(7, 5), slot=2, first_block=16, **SAMPLED)
    second.computed = 32
    loads = [BlockTransfer(0, 16 + block, 3 - block, saves=False) for block in range(2)]
    driver.step([(second, driver.row(second))], admitted=[driver.admission(second)], transfers=loads)
    driver.generate(second, 1, admit=False)
    alone = Driver(cpu())
    assert second.text == alone.generate(alone.live(prefix + prompt_of(7, 5), **SAMPLED), 2)


@pytest.mark.parametrize("kind", sorted(CACHE_TYPES))
def test_every_type_of_cache_is_near_the_exact_one(kind):
    def scores(executable):
        driver = Driver(executable)
        live = driver.live(prompt_of(4, 36), **GREEDY)
        live.scores = True
        driver.generate(live, 1, chunk=20)
        return live.prompt_logprobs

    exact = scores(cpu())
    found = scores(build_gpu(tiny_folder(), GpuPrecision("float32", "dense", kind)))
    np.testing.assert_allclose(found, exact, atol=ERRORS[kind])
    if kind != "float32":
        assert np.abs(np.array(found) - exact).max() > ERRORS[kind] / 100, "it is rounded"
