"""Everybody who can be compared takes turns, A B A B."""

from __future__ import annotations

from octavo_engine.bench.peers.contender import Contender
from octavo_engine.bench.peers.point import BATCH, BATCH_SIZES, DECODE, MIXED, POINTS
from octavo_engine.bench.peers.schedule import BEST_BATCH, groups, turns, with_best_batch


def contender(name, *points):
    return Contender(name, name, frozenset(point.name for point in points), lambda: None)


def test_turns_alternate_and_each_round_has_its_own_seed():
    (group,) = groups([contender("a", MIXED), contender("b", MIXED)], [MIXED])
    assert [(turn.round, turn.contender) for turn in turns(group, 3)] == [
        (0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b"),
    ]  # fmt: skip


def test_who_cannot_run_a_point_is_not_asked_and_nobody_runs_alone():
    found = groups([contender("a", MIXED, BATCH, DECODE), contender("b", BATCH), contender("c", BATCH)], POINTS)
    assert [[name for name, _ in group.entries] for group in found] == [["a", "b", "c"]]


def test_a_best_batch_size_is_one_more_entry_at_the_end_of_each_round():
    (group,) = groups([contender("a", BATCH), contender("b", BATCH)], [BATCH])
    wider = with_best_batch(group, "b", 8)
    assert [(name, point.name) for name, point in wider.entries] == [("a", "batch"), ("b", "batch"), ("b", BEST_BATCH)]
    point = wider.entries[-1][1]
    items = point.make(0)
    assert len(items) == 8
    assert {(len(item.prompt), item.max_tokens) for item in items} == {(128, 128)}


def test_a_best_batch_size_that_is_the_largest_is_no_further_entry():
    (group,) = groups([contender("a", BATCH), contender("b", BATCH)], [BATCH])
    assert with_best_batch(group, "b", max(BATCH_SIZES)) == group
    assert with_best_batch(group, "elsewhere", 8) == group


def test_no_two_rounds_share_a_prompt():
    for point in POINTS:
        first, second = point.make(0), point.make(1)
        assert not {item.prompt for item in first} & {item.prompt for item in second}
        assert point.make(0) == first
