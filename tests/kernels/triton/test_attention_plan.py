"""A step cut into attention programs: every key that a query sees is attended once, within the buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.triton.attention_plan import (
    INVARIANT_SPLIT_TOKENS,
    AttentionTuning,
    Prefix,
    WorkCapacity,
    WorkList,
    choose_split,
    find_prefixes,
    plan_work,
    work_capacity,
)

TUNING = AttentionTuning(16, 16, 4, 2)
SPLIT = 64
Rows = Sequence[tuple[int, int]]


def offsets(rows: Rows) -> np.ndarray:
    return np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32)


def contexts(rows: Rows) -> np.ndarray:
    return np.array([context for context, _ in rows], dtype=np.int32)


def plan(rows: Rows, **options) -> WorkList:
    settings = {"group_size": 3, "tuning": TUNING, "split_tokens": SPLIT} | options
    return plan_work(offsets(rows), contexts(rows), **settings)


def attended(work: WorkList, rows: Rows) -> np.ndarray:
    """Return how often each token attends to each position, [tokens, positions], what it may not see left out."""
    counts = np.zeros((sum(queries for _, queries in rows), max([context for context, _ in rows], default=0)), int)
    for first, queries, begin, end, _, _ in work.items:
        for token, position, _ in work.queries[first : first + queries]:
            low = max(begin, position - work.window + 1) if work.window else begin
            counts[token, low : min(end, position + 1)] += 1
    return counts


def visible(rows: Rows, window: int = 0) -> np.ndarray:
    longest = max(context for context, _ in rows)
    seen = np.zeros((sum(queries for _, queries in rows), longest), int)
    positions = [position for context, queries in rows for position in range(context - queries, context)]
    for token, position in enumerate(positions):
        seen[token, max(position - window + 1, 0) if window else 0 : position + 1] = 1
    return seen


def assert_results_have_places(work: WorkList) -> None:
    """Each token is written once: directly, or as partial results that fill its places in the workspace."""
    written: dict[int, list[int]] = {}
    direct: list[int] = []
    for first, queries, _, _, _, partial in work.items:
        for token, _, first_partial in work.queries[first : first + queries]:
            if partial < 0:
                direct.append(token)
            else:
                written.setdefault(token, []).append(first_partial + partial)
    expected = {token: list(range(first, first + count)) for token, first, count in work.merges}
    assert {token: sorted(places) for token, places in written.items()} == expected
    assert sorted([*direct, *written]) == list(range(len(direct) + len(written)))
    places = sorted(place for row in written.values() for place in row)
    assert places == list(range(work.partials))


rows_of_a_step = st.lists(
    st.integers(0, 200).flatmap(lambda context: st.tuples(st.just(context), st.integers(0, min(context, 40)))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, derandomize=True)
@given(
    rows=rows_of_a_step,
    window=st.sampled_from([0, 1, 16, 63, 64, 100]),
    group=st.sampled_from([1, 3, 4, 8, 16]),
    fill=st.sampled_from([None, 0, 4]),
)
def test_every_visible_key_is_attended_once(rows: Rows, window: int, group: int, fill: int | None) -> None:
    work = plan(rows, window=window, group_size=group, fill=fill)
    assert (attended(work, rows) == visible(rows, window)).all()
    assert_results_have_places(work)


@settings(max_examples=40, derandomize=True)
@given(rows=rows_of_a_step, items=st.integers(0, 12), partials=st.integers(0, 40))
def test_a_step_never_exceeds_its_buffers(rows: Rows, items: int, partials: int) -> None:
    tokens = sum(queries for _, queries in rows)
    tiles = sum(-(-queries // 5) for _, queries in rows)
    capacity = WorkCapacity(tokens, tiles + items, partials)
    work = plan(rows, capacity=capacity)
    assert len(work.items) <= capacity.items
    assert work.partials <= capacity.partials
    assert (attended(work, rows) == visible(rows)).all()
    assert_results_have_places(work)


def test_splits_behind_the_window_or_beyond_the_queries_are_not_listed() -> None:
    work = plan([(500, 1)], window=70)
    assert work.items[:, 2:4].tolist() == [[448, 500], [430, 448]]
    work = plan([(500, 10)], group_size=1, window=0, capacity=WorkCapacity(10, 1, 0))
    assert work.items[:, 2:4].tolist() == [[0, 500]]


def test_a_row_that_fits_one_split_needs_no_merge() -> None:
    work = plan([(SPLIT, 1), (SPLIT + 1, 1)])
    assert work.items[:, 5].tolist().count(-1) == 1
    assert work.merges.tolist() == [[1, 0, 2]]


def test_queries_and_heads_of_a_group_fill_a_tile() -> None:
    assert plan([(40, 12)], group_size=3).items[:, 1].tolist() == [2, 5, 5]
    assert plan([(40, 3)], group_size=16).items[:, 1].tolist() == [1, 1, 1]


def test_a_query_without_context_still_gets_a_program() -> None:
    work = plan_work(
        np.array([0, 1], np.int32), np.array([0], np.int32), group_size=1, tuning=TUNING, split_tokens=SPLIT
    )
    assert work.items.tolist() == [[0, 1, 0, 0, 0, -1]]


def test_cuts_do_not_depend_on_other_rows() -> None:
    def cuts(rows: Rows, row: int) -> list[list[int]]:
        work = plan(rows)
        return sorted(item[2:4].tolist() for item in work.items if item[4] == row)

    assert cuts([(300, 1)], 0) == cuts([(64, 1), (10, 10), (300, 1), (1000, 1)], 2)


def test_tiles_of_a_full_device_stay_whole_but_decode_rows_do_not() -> None:
    work = plan([(300, 40), (300, 1)], fill=4)
    whole = work.items[work.items[:, 5] < 0]
    assert len(whole) == 8
    assert len(work.merges) == 1


def tables_of(*rows: Sequence[int]) -> np.ndarray:
    tables = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int32)
    for row, blocks in enumerate(rows):
        tables[row, : len(blocks)] = blocks
    return tables


def found(tables: np.ndarray, rows: Rows, multiple: int = 16, min_rows: int = 2) -> set[tuple[tuple[int, ...], int]]:
    prefixes = find_prefixes(tables, contexts(rows), offsets(rows), multiple=multiple, min_rows=min_rows)
    return {(tuple(sorted(prefix.rows.tolist())), prefix.tokens) for prefix in prefixes}


def test_rows_that_share_blocks_are_found_wherever_they_are_in_the_step() -> None:
    tables = tables_of([7, 8, 1], [3, 4, 5], [7, 8, 2], [9, 4, 5], [7, 8, 6])
    assert found(tables, [(40, 1)] * 5) == {((0, 2, 4), 32)}


def test_a_prefix_ends_with_a_multiple_and_with_the_shortest_context() -> None:
    tables = tables_of([7, 8, 9, 1], [7, 8, 9, 2])
    assert found(tables, [(60, 1), (60, 1)], multiple=32) == {((0, 1), 32)}
    assert found(tables, [(60, 1), (47, 1)]) == {((0, 1), 32)}
    assert found(tables, [(60, 1), (15, 1)]) == set()


def test_rows_too_short_for_all_of_a_prefix_do_not_part_the_others() -> None:
    tables = tables_of([7, 8, 1], [7, 8, 2], [7, 8, 3], [7, 8, 4])
    assert found(tables, [(40, 1), (31, 1), (40, 1), (40, 1)]) == {((0, 2, 3), 32)}


def test_only_decode_rows_share_a_prefix() -> None:
    tables = tables_of([7, 8], [7, 8], [7, 8], [7, 8])
    assert found(tables, [(32, 1), (32, 2), (32, 0), (20, 1)]) == {((0, 3), 16)}


def test_rows_are_grouped_so_that_the_most_reading_is_spared() -> None:
    tables = tables_of([1, 2, 3, 4], [1, 2, 3, 5], [1, 6, 7, 8], [1, 6, 7, 9])
    assert found(tables, [(64, 1)] * 4) == {((0, 1), 48), ((2, 3), 48)}
    tables = tables_of([1, 2, 3], [1, 2, 4], [1, 5, 6], [1, 7, 8])
    assert found(tables, [(48, 1)] * 4) == {((0, 1, 2, 3), 16)}
    assert found(tables, [(48, 1)] * 4, min_rows=5) == set()


def test_missing_blocks_are_not_shared() -> None:
    assert found(tables_of([-1, -1], [-1, -1]), [(32, 1), (32, 1)]) == set()


@settings(max_examples=40, derandomize=True)
@given(
    shared=st.integers(0, 10),
    own=st.lists(st.integers(1, 80), min_size=2, max_size=7),
    split=st.sampled_from([16, 32, 64]),
    invariant=st.booleans(),
    room=st.integers(0, 40),
)
def test_a_shared_prefix_is_attended_once_by_each_of_its_rows(
    shared: int, own: list[int], split: int, invariant: bool, room: int
) -> None:
    rows = [(shared * 16 + length, 1) for length in own] + [(30, 7)]
    tables = np.arange(len(rows) * 20, dtype=np.int32).reshape(len(rows), 20)
    tables[: len(own), :shared] = tables[0, :shared]
    multiple = split if invariant else 16
    prefixes = find_prefixes(tables, contexts(rows), offsets(rows), multiple=multiple, min_rows=2)
    assert bool(prefixes) == (shared * 16 >= multiple)
    for capacity in (None, WorkCapacity(len(own) + 7, len(own) + 2 + room, room)):
        work = plan(rows, split_tokens=split, invariant=invariant, prefixes=prefixes, capacity=capacity)
        assert (attended(work, rows) == visible(rows)).all()
        assert_results_have_places(work)
        if capacity is None and prefixes:
            # Five rows of three heads fill a tile.
            tiles = -(-len(own) // 5) * -(-prefixes[0].tokens // split)
            assert sum(int(item[3]) <= prefixes[0].tokens and item[4] < len(own) for item in work.items) == tiles
        elif capacity is not None:
            assert len(work.items) <= capacity.items
            assert work.partials <= capacity.partials


def test_the_split_fills_the_device() -> None:
    def items(rows: Rows, processors: int) -> int:
        split = choose_split(
            offsets(rows), contexts(rows), group_size=4, kv_heads=8, tuning=TUNING, processors=processors
        )
        return len(plan(rows, group_size=4, split_tokens=split, invariant=False).items)

    assert items([(32_000, 1)], 132) * 8 >= 132
    assert items([(1000, 1)] * 256, 132) == 256
    assert items([(64, 1)], 132) == 1


def test_the_split_levels_one_long_row_among_short_ones() -> None:
    rows = [(100_000, 1), *[(500, 1)] * 31]
    split = choose_split(offsets(rows), contexts(rows), group_size=4, kv_heads=8, tuning=TUNING, processors=132)
    assert 500 < split < 20_000


def test_the_chosen_split_fits_the_buffers() -> None:
    rows = [(100_000, 1), (3000, 1)]
    capacity = WorkCapacity(2, 12, 10)
    options = {"group_size": 4, "tuning": TUNING}
    split = choose_split(offsets(rows), contexts(rows), kv_heads=1, processors=132, capacity=capacity, **options)
    work = plan(rows, split_tokens=split, invariant=False, capacity=capacity, **options)
    assert 4 < len(work.items) <= 12


def test_capacity_holds_full_decode_steps_and_any_chunks() -> None:
    capacity = work_capacity(512, 16, 5000, group_size=4, tuning=TUNING)
    for rows in ([(5000, 1)] * 16, [(5000, 512)], [(5000, 1)] * 15 + [(5000, 497)], [(5000, 3)] * 16):
        work = plan(rows, group_size=4, split_tokens=INVARIANT_SPLIT_TOKENS, capacity=capacity)
        decode = sum(queries == 1 for _, queries in rows)
        assert len(work.merges) >= decode
    assert work_capacity(512, 16, 5000, group_size=4, tuning=TUNING, max_partials=10).partials == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 17}, "tune it larger"),
        ({"split_tokens": 24}, "multiple of block_n"),
        ({"tuning": AttentionTuning(24, 16, 4, 2)}, "power of two"),
        ({"tuning": AttentionTuning(16, 8, 4, 2)}, "power of two"),
        ({"capacity": WorkCapacity(2, 9, 9)}, "make them larger"),
        ({"prefixes": (Prefix(np.array([0, 1]), 32),)}, "multiple of 64"),
        ({"prefixes": (Prefix(np.array([0, 1]), 128),)}, "contain"),
        ({"prefixes": (Prefix(np.array([0, 2]), 64),)}, "several queries"),
        ({"prefixes": (Prefix(np.array([0, 1]), 64),), "window": 8}, "without prefixes"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan([(100, 1), (90, 1), (80, 2)], **options)


def test_offsets_and_contexts_must_fit() -> None:
    with pytest.raises(ValueError, match=r"rows \+ 1"):
        plan_work(np.array([0, 1]), np.array([3, 3]), group_size=1, tuning=TUNING, split_tokens=SPLIT)
    with pytest.raises(ValueError, match="multiple of 16"):
        find_prefixes(np.zeros((1, 1), np.int32), np.array([1]), np.array([0, 1]), multiple=24)
