"""Prefixes: what is believed to be cached where, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.gateway.policies import Consistent, LeastLoad, RoundRobin
from octavo_operator.gateway.prefix import CHUNK_BYTES, DIGESTED_BYTES, MOST_ENTRIES, PrefixIndex, digest_text
from octavo_operator.gateway.prefix_aware import PrefixAware
from octavo_operator.gateway.types import Candidate, Wanted

from .fleets import Bench, endpoint, sample

CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(
    lambda path: tuple(bytes(path[: length + 1]) for length in range(len(path)))
)


def test_a_digest_covers_the_text_before_it_and_the_salt() -> None:
    text = b"a" * (3 * CHUNK_BYTES) + b"rest"
    prefix = digest_text(text, "tenant:one")
    assert len(prefix.digests) == 3 == len(set(prefix.digests))
    assert prefix.tail == 0
    assert digest_text(text[:-1], "tenant:one") == prefix
    assert set(digest_text(b"b" + text[1:], "tenant:one").digests).isdisjoint(prefix.digests)
    assert set(digest_text(text, "tenant:two").digests).isdisjoint(prefix.digests)
    longer = digest_text(text * 100, "tenant:one")
    assert longer.digests[:3] == prefix.digests
    assert len(longer.digests) == DIGESTED_BYTES // CHUNK_BYTES
    assert longer.tail == len(text * 100) // CHUNK_BYTES - len(longer.digests)
    assert digest_text(b"", "x") == ((), 0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CHAINS, st.integers(0, 5)), max_size=40), st.integers(1, 30))
def test_the_index_stays_in_its_room_and_never_believes_an_end_without_its_beginning(
    sent: list[tuple[tuple[bytes, ...], int]], room: int
) -> None:
    index = PrefixIndex()
    for digests, more in sent:
        tail = more if len(digests) == 8 else 0  # only a prompt that is longer than what is digested has one
        index.add(digests, tail, room)
        assert index.weight <= room
        assert index.weight == sum(index._entries.values()) >= len(index)
        assert all(len(digest) == 1 or digest[:-1] in index._entries for digest in index._entries)
        matched = index.matched(digests, tail)
        assert matched <= room
        assert room < 21 or matched == len(digests) + tail


def test_the_most_recently_used_prefix_is_kept() -> None:
    index = PrefixIndex()
    chains = [tuple(bytes([first, step]) for step in range(4)) for first in range(6)]
    for chain in chains[:5]:
        index.add(chain, 0, 20)
    index.add(chains[0], 0, 20)
    index.add(chains[5], 0, 20)
    assert [index.matched(chain, 0) for chain in chains] == [4, 0, 4, 4, 4, 4]


def test_the_unread_rest_of_a_prompt_takes_room_and_is_believed_as_far_as_it_was_seen() -> None:
    index = PrefixIndex()
    index.add((b"a", b"b"), 10, 100)
    assert index.matched((b"a", b"b"), 4) == 6
    assert index.matched((b"a", b"b"), 40) == 12
    assert index.matched((b"a",), 40) == 1
    index.add((b"c",), 95, 100)
    assert index.matched((b"a", b"b"), 10) == 1
    assert index.weight <= 100


def test_b58_a_flood_of_prefixes_takes_bounded_memory() -> None:
    index = PrefixIndex()
    for number in range(MOST_ENTRIES // 8 + 100):
        index.add(tuple(b"%d %d" % (number, step) for step in range(8)), 0, 10**9)
    assert len(index) == MOST_ENTRIES


def test_a_conversation_stays_where_its_prefix_is() -> None:
    bench = Bench(8, PrefixAware(unit_tokens=64))
    for number in range(8):
        bench.fleet.sampled(sample(number, bench.now + 0.1, total_blocks=10_000))
    for conversation in range(20):
        turns = [bytes([conversation, step]) for step in range(40)]
        homes = set()
        for turn in range(4):
            request_id, to = bench.send(Wanted(f"{conversation} {turn}", tuple(turns[: 10 * (turn + 1)])))
            homes.add(to)
            bench.end(request_id)
        assert len(homes) == 1


def test_b58_equal_load_and_no_prefix_spreads_a_burst_evenly() -> None:
    bench = Bench(8, PrefixAware())
    for _ in range(200):
        bench.send()
    counts = [bench.fleet.in_flight.count(f"pod-{n}") for n in range(8)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("warm", ["none", "one", "all"])
def test_b58_a_shared_prefix_does_not_make_a_hot_pod(warm: str) -> None:
    shared = tuple(b"system %d" % step for step in range(32))
    bench = Bench(8, PrefixAware())
    for number in {"none": (), "one": (3,), "all": range(8)}[warm]:
        bench.fleet._policy.sent(Wanted("warm", shared), Candidate(f"pod-{number}", 0, 0, room=10**6))
    for number in range(200):
        bench.send(Wanted(f"{number}", (*shared, b"own %d" % number)))
        bench.now += 0.005
    counts = [bench.fleet.in_flight.count(f"pod-{n}") for n in range(8)]
    assert max(counts) <= 1.5 * 200 / 8


def test_b58_one_pod_without_metrics_does_not_take_a_shared_prefix() -> None:
    shared = tuple(b"system %d" % step for step in range(32))
    bench = Bench(7, PrefixAware())
    bench.endpoints[7] = endpoint(7)
    bench.update()
    for number in range(200):
        assert bench.send(Wanted(f"{number}", shared))[1] != 7


def test_b58_a_new_pod_gets_its_share() -> None:
    shared = tuple(b"system %d" % step for step in range(32))
    bench = Bench(8, PrefixAware())
    for number in range(160):
        bench.send(Wanted(f"{number}", shared))
    bench.endpoints[8] = endpoint(8)
    bench.update()
    bench.now += 1
    bench.report()
    taken = [bench.send(Wanted(f"late {number}", shared))[1] for number in range(20)]
    assert taken.count(8) >= 10


def test_an_endpoint_that_is_replaced_is_believed_to_hold_nothing() -> None:
    bench = Bench(2, policy := PrefixAware())
    wanted = Wanted("a", (b"x", b"y"))
    _, to = bench.send(wanted)
    assert policy.rank(wanted, (Candidate(f"pod-{to}", 0, 0),)).matched_tokens > 0
    bench.endpoints.pop(to)
    bench.update()
    bench.endpoints[to] = replace(endpoint(to))
    bench.update()
    assert policy.rank(wanted, (Candidate(f"pod-{to}", 0, 0),)).matched_tokens == 0


def test_hashing_moves_only_what_the_new_pod_gets() -> None:
    policy = Consistent()
    eight = tuple(Candidate(f"pod-{n}", 0, 0) for n in range(8))
    nine = (*eight, Candidate("pod-8", 0, 0))
    moved = 0
    for key in range(2000):
        wanted = Wanted("r", key=key.to_bytes(4, "big"))
        before, after = policy.rank(wanted, eight).order[0], policy.rank(wanted, nine).order[0]
        assert after in (before, "pod-8")
        moved += after == "pod-8"
    assert 2000 / 9 * 0.8 < moved < 2000 / 9 * 1.2


def test_turns_go_round_and_a_new_pod_is_next() -> None:
    bench = Bench(3, RoundRobin())
    assert [bench.send()[1] for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    bench.endpoints[3] = endpoint(3)
    bench.update()
    bench.now += 1
    bench.report()
    assert [bench.send()[1] for _ in range(5)] == [3, 0, 1, 2, 3]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=9),
    st.sampled_from([PrefixAware, LeastLoad, RoundRobin, Consistent]),
)
def test_every_policy_names_every_candidate_once_and_asking_changes_nothing(
    loads: list[tuple[int, int]], policy: type
) -> None:
    candidates = tuple(Candidate(f"pod-{n}", load, min(load, soon)) for n, (load, soon) in enumerate(loads))
    chosen = policy()
    wanted = Wanted("r", (b"a", b"b"), key=b"k")
    first = chosen.rank(wanted, candidates)
    assert sorted(first.order) == sorted(c.uid for c in candidates)
    assert chosen.rank(wanted, candidates) == first
