"""A step's inputs, read from the device's batch: which tokens, where to, and what is void."""

import numpy as np
import pytest
import torch

from octavo_kernels.triton.step import VOID, finish_step, prepare_step, scatter

SLOTS, ROOM, BLOCKS = 4, 300, 20


@pytest.fixture
def batch():
    random = np.random.default_rng(1)
    tokens = torch.from_numpy(random.integers(1, 1000, (SLOTS, ROOM), dtype=np.int32))
    tables = torch.from_numpy(random.permutation(2 * SLOTS * BLOCKS).astype(np.int32).reshape(2, SLOTS, BLOCKS))
    return tokens, torch.tensor([10, 200, 0, 17], dtype=torch.int32), tables


def prepare(batch, rows):
    tokens, lengths, tables = batch
    width = max(sum(row[2] for row in rows), 1)
    out = {name: torch.full((width,), -9, dtype=torch.int32) for name in ("tokens", "positions", "adapters")}
    out["slots"] = torch.full((2, width), -9, dtype=torch.int64)
    out["live"] = torch.full((len(rows),), -9, dtype=torch.int32)
    table = torch.tensor(rows, dtype=torch.int32)
    longest = max(row[2] for row in rows)
    prepare_step(table, tokens, lengths, tables, **out, max_position=250, longest=longest)
    return table, out


def test_rows_read_their_tokens_and_blocks(batch):
    tokens, _, tables = batch
    rows = [(1, 3, 150, 0, 2, 0, 0, 0), (0, 9, 1, 150, -1, 1, 0, 1), (3, 0, 17, 151, 5, 1, 1, 1)]
    _, out = prepare(batch, rows)
    assert out["live"].tolist() == [1, 1, 1]
    for slot, start, count, first, adapter, *_ in rows:
        here, positions = slice(first, first + count), torch.arange(start, start + count)
        assert out["tokens"][here].tolist() == tokens[slot, start : start + count].tolist()
        assert out["positions"][here].tolist() == positions.tolist()
        assert set(out["adapters"][here].tolist()) == {adapter}
        for group in range(2):
            expected = tables[group, slot, positions // 16].long() * 16 + positions % 16
            assert out["slots"][group, here].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("row", "alive"),
    [
        ((0, 9, 1, 0, -1, 1, 0, 1), True),
        ((0, 8, 1, 0, -1, 1, 0, 1), False),  # it samples, and more is known than it was planned on
        ((0, 10, 1, 0, -1, 1, 0, 1), False),  # its token was never sampled
        ((0, 4, 3, 0, -1, 0, 0, 0), True),
        ((0, 4, 7, 0, -1, 0, 0, 0), False),
        ((0, 8, 1, 0, -1, 1, 0, 0), True),  # what it samples is thrown away
        ((-1, 0, 1, 0, -1, 0, 0, 0), False),
    ],
)
def test_a_row_on_tokens_that_did_not_come_true_is_void(batch, row, alive):
    _, out = prepare(batch, [row])
    assert out["live"].tolist() == [int(alive)]
    assert (out["slots"] >= 0).tolist() == [[alive] * row[2]] * 2
    assert alive or out["tokens"].tolist() == [0] * row[2]


def test_a_freed_block_is_written_nowhere_and_positions_stay_within_the_factors(batch):
    _, _, tables = batch
    tables[1, 1, 12] = -1
    _, out = prepare(batch, [(1, 199, 1, 0, -1, 1, 0, 1)])
    assert out["slots"][1].tolist() == [-1]
    assert out["slots"][0].item() >= 0
    batch[1][1] = 260
    _, out = prepare(batch, [(1, 255, 5, 0, -1, 0, 0, 0)])
    assert out["positions"].tolist() == [249] * 5


def test_sampled_tokens_are_appended_and_failures_told(batch):
    tokens, lengths, _ = batch
    rows = [
        (0, 9, 1, 0, -1, 1, 0, 1),
        (1, 199, 1, 1, -1, 1, 1, 1),
        (3, 3, 2, 2, -1, 0, 0, 0),
        (-1, 0, 1, 4, -1, 0, 0, 0),
        (2, 5, 1, 5, -1, 1, 2, 1),
    ]
    table, out = prepare(batch, rows)
    results = torch.zeros(len(rows), dtype=torch.int32)
    finish_step(table, out["live"], torch.tensor([77, -1, 5], dtype=torch.int32), tokens, lengths, results)
    assert results.tolist() == [77, -1, VOID, VOID, VOID]
    assert lengths.tolist() == [11, 200, 0, 17]
    assert tokens[0, 10] == 77
    # The next step finds it.
    _, out = prepare(batch, [(0, 10, 1, 0, -1, 1, 0, 1)])
    assert out["tokens"].tolist() == [77]


@pytest.mark.parametrize("count", [1, 255, 256, 257])
def test_scatter(count):
    target = torch.zeros(40, 20, dtype=torch.int32)
    places = torch.randperm(800)[:count]
    values = torch.arange(1, count + 1, dtype=torch.int32)
    scatter(target, places, values)
    assert torch.equal(target.view(-1)[places], values)
    assert int((target != 0).sum()) == count
