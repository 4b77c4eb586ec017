"""The KV cache's blocks: copied, exported, imported, each over all layers."""

from __future__ import annotations

import numpy as np
import pytest

from octavo_engine.worker.executable import Executable
from tests.model.stepping import Part, run

PROMPT = list(range(20))


def last(model: Executable, table: list[int]) -> np.ndarray:
    return run(model, Part(table, [99], len(PROMPT)))[0]


def test_a_copied_block_serves_as_the_original(random_llama: Executable) -> None:
    random_llama.layout.allocate([4])
    run(random_llama, Part([0, 1], PROMPT, 0))
    expected = last(random_llama, [0, 1])
    random_llama.layout.copy_blocks(0, [(0, 2), (1, 3), (2, 0)])
    assert np.array_equal(last(random_llama, [2, 3]), expected)


def test_copies_happen_in_order(random_llama: Executable) -> None:
    layout = random_llama.layout
    layout.allocate([3])
    block = np.random.default_rng(0).bytes(layout.groups[0].bytes_per_block)
    layout.import_block(0, 0, block)
    layout.copy_blocks(0, [(0, 1), (1, 2)])
    assert layout.export_block(0, 2) == layout.export_block(0, 0) == block


def test_an_exported_block_serves_elsewhere(random_llama: Executable) -> None:
    layout = random_llama.layout
    layout.allocate([2])
    run(random_llama, Part([0, 1], PROMPT, 0))
    expected = last(random_llama, [0, 1])
    blocks = [layout.export_block(0, block) for block in (0, 1)]
    assert {len(block) for block in blocks} == {layout.groups[0].bytes_per_block}
    layout.allocate([4])
    layout.import_block(0, 3, blocks[0])
    layout.import_block(0, 1, blocks[1])
    assert np.array_equal(last(random_llama, [3, 1]), expected)


def test_a_block_of_another_layout_is_refused(random_llama: Executable) -> None:
    random_llama.layout.allocate([1])
    with pytest.raises(ValueError, match="bytes"):
        random_llama.layout.import_block(0, 0, b"short")


def test_memory_that_cannot_be_had_is_a_memory_error(random_llama: Executable) -> None:
    with pytest.raises(MemoryError, match="kv-cache-memory"):
        random_llama.layout.allocate([2**40])
