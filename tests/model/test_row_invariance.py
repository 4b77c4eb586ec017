"""A row's logits are the same bits whatever the other rows are, however its context was computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_engine.worker.executable import Executable
from tests.model.building import build
from tests.model.conftest import PRECISIONS, write_random_llama
from tests.model.stepping import Part, build_step, run, run_step, tables


def tokens(model: Executable, count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, model.vocab_size, count)]


def poison(model: Executable, blocks: list[int]) -> None:
    """Fill blocks with what is no number in any type: bytes of ones."""
    for block in blocks:
        model.layout.import_block(0, block, b"\xff" * model.layout.groups[0].bytes_per_block)


def whole(model: Executable, prompt: list[int], table: list[int]) -> NDArray[np.float32]:
    """Logits of every position, from one prefill."""
    return run(model, Part(table, prompt, 0, every_position=True))


def decoded_beside(
    model: Executable, prompt: list[int], neighbours: int, place: int, blocks: int = 40
) -> NDArray[np.float32]:
    """Logits of the last token, decoded as row `place` beside neighbours with contexts of up to `blocks` blocks."""
    own = tables(neighbours + 1, blocks, seed=neighbours)
    model.layout.allocate([blocks * (neighbours + 1)])
    run(model, Part(own[place], prompt[:-1], 0))
    parts = [
        Part(table, [row % model.vocab_size], 17 * row % (16 * blocks))
        if row != place
        else Part(table, prompt[-1:], len(prompt) - 1)
        for row, table in enumerate(own)
    ]
    return run(model, *parts)[place]


def test_a_row_of_a_random_model_is_the_same_in_batches_of_1_to_130(random_llama: Executable) -> None:
    prompt = tokens(random_llama, 70)
    alone = decoded_beside(random_llama, prompt, 0, 0)
    for rows in range(2, 131):
        place = rows * 7 % rows if rows % 2 else rows - 1
        assert np.array_equal(decoded_beside(random_llama, prompt, rows - 1, place), alone), rows


@pytest.mark.parametrize(("rows", "place"), [(2, 1), (16, 15), (17, 16), (33, 5)])
def test_a_row_of_the_real_model_is_the_same_in_any_batch(smollm2: Executable, rows: int, place: int) -> None:
    prompt = tokens(smollm2, 40)
    alone = decoded_beside(smollm2, prompt, 0, 0, blocks=5)
    assert np.array_equal(decoded_beside(smollm2, prompt, rows - 1, place, blocks=5), alone)


@pytest.mark.parametrize("chunk", [1, 5, 15, 16, 17, 64, 255, 256, 257])
def test_chunks_of_a_prompt_give_what_the_whole_gives(random_llama: Executable, chunk: int) -> None:
    prompt = tokens(random_llama, 530)
    first, second = tables(2, 40, seed=1)
    random_llama.layout.allocate([80])
    expected = whole(random_llama, prompt, first)
    got = [
        run(random_llama, Part(second, prompt[start : start + chunk], start, every_position=True))
        for start in range(0, len(prompt), chunk)
    ]
    assert np.array_equal(np.concatenate(got), expected)


def test_chunks_of_the_real_model_give_what_the_whole_gives(smollm2: Executable) -> None:
    prompt = tokens(smollm2, 280)
    first, second = tables(2, 20, seed=2)
    smollm2.layout.allocate([40])
    expected = whole(smollm2, prompt, first)[-1]
    for start, end in [(0, 50), (50, 255), (255, 279), (279, 280)]:
        got = run(smollm2, Part(second, prompt[start:end], start))
    assert np.array_equal(got[0], expected)


def test_where_blocks_lie_changes_nothing(random_llama: Executable) -> None:
    prompt = tokens(random_llama, 530)
    (consecutive,), (scattered,) = tables(1, 40), tables(1, 40, seed=3)
    random_llama.layout.allocate([40])
    expected = whole(random_llama, prompt, consecutive)
    assert np.array_equal(whole(random_llama, prompt, scattered), expected)


def test_what_a_former_owner_left_in_a_block_changes_nothing(random_llama: Executable) -> None:
    prompt = tokens(random_llama, 33)
    (table,) = tables(1, 3)
    random_llama.layout.allocate([3])
    expected = whole(random_llama, prompt, table)
    poison(random_llama, table)
    assert np.array_equal(whole(random_llama, prompt, table), expected)


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(random_llama: Executable) -> None:
    prompt = tokens(random_llama, 20)
    first, second = tables(2, 2)
    random_llama.layout.allocate([4])
    run(random_llama, Part(first, prompt[:-1], 0))
    alone = run(random_llama, Part(first, prompt[-1:], 19))[0]
    poison(random_llama, second)
    together = run(random_llama, Part(second, prompt[-1:], 19), Part(first, prompt[-1:], 19))
    assert not np.isfinite(together[0]).all()
    assert np.array_equal(together[1], alone)


def test_padding_is_computed_and_written_nowhere(random_llama: Executable) -> None:
    prompt = tokens(random_llama, 20)
    (table,) = tables(1, 3)
    random_llama.layout.allocate([3])
    expected = run(random_llama, Part(table, prompt, 0))
    before = [random_llama.layout.export_block(0, block) for block in table]
    padded = build_step([Part(table, [*prompt, 7, 7, 7], 0)])
    slots = padded.slots[0].copy()
    slots[20:] = -1
    step = padded._replace(
        slots=(slots,), context_lengths=np.array([20], np.int32), logit_tokens=np.array([19], np.int32)
    )
    assert np.array_equal(run_step(random_llama, step), expected)
    assert [random_llama.layout.export_block(0, block) for block in table] == before


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS.keys())
def test_the_number_of_threads_changes_nothing(precision: dict[str, str], tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path, seed=5)
    results = []
    for threads in (1, 2, 3):
        model = build(folder, **precision, threads=threads)
        (table,) = tables(1, 40)
        model.layout.allocate([40])
        results.append(whole(model, tokens(model, 100), table))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
