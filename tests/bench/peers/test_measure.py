"""Everybody is warmed up, takes turns on the same requests, and falls out alone."""

from __future__ import annotations

import pytest

from octavo_engine.bench.peers.contender import Contender
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.measure import Field, measure
from octavo_engine.bench.peers.notes import LeftOut, Notes
from octavo_engine.bench.peers.point import BATCH, BATCH_SIZES, MIXED, Timing
from octavo_engine.bench.peers.schedule import BEST_BATCH
from octavo_engine.worker.sizing import StartError


class Engine:
    """Takes a second for each request beyond `best`; fails in its run number `dies`."""

    def __init__(self, best: int = 0, dies: int = 0) -> None:
        self.best, self.dies = best, dies
        self.seen = []
        self.closed = False

    def run(self, items):
        self.seen.append(items)
        if len(self.seen) == self.dies:
            raise PeerError("it ran out of memory.")
        output = sum(item.max_tokens for item in items)
        seconds = 1.0 + max(0, len(items) - self.best)
        return Timing(seconds, sum(len(item.prompt) for item in items), output, output - len(items), 0.1)

    def close(self):
        self.closed = True


def field_of(notes, **engines):
    points = frozenset({MIXED.name, BATCH.name})
    return Field([Contender(name, name.title(), points, lambda e=engine: e) for name, engine in engines.items()], notes)


def test_everybody_gets_the_same_requests_in_the_same_rounds():
    ours, theirs, notes = Engine(), Engine(), Notes([].append)
    field = field_of(notes, ours=ours, theirs=theirs)
    measured = measure(field, [MIXED], 3, notes)
    field.close()
    assert ours.seen == theirs.seen
    # Warm-up at the start, one run of the point that does not count, three rounds.
    assert len(ours.seen) == 5
    assert {key: len(rates) for key, rates in measured.figures.items()} == {
        ("mixed", "ours"): 3,
        ("mixed", "theirs"): 3,
    }
    assert len(measured.loads) == 6
    assert ours.closed
    assert theirs.closed


def test_who_fails_is_out_from_there_on_and_the_others_go_on():
    ours, theirs, notes = Engine(), Engine(dies=4), Notes([].append)
    field = field_of(notes, ours=ours, theirs=theirs)
    measured = measure(field, [MIXED], 3, notes)
    assert {key: len(rates) for key, rates in measured.figures.items()} == {
        ("mixed", "ours"): 3,
        ("mixed", "theirs"): 1,
    }
    assert notes.left_out == [
        LeftOut("theirs", "Theirs", "from mixed workload, 64 requests on", "it ran out of memory.")
    ]
    assert notes.left_out[0].sentence == (
        "Theirs is left out from mixed workload, 64 requests on: it ran out of memory."
    )
    assert not notes.own_failed
    assert theirs.closed


def test_who_does_not_start_is_left_out():
    def start():
        raise PeerError("it is no engine.")

    said = []
    field = Field([Contender("gone", "Gone", frozenset(), start)], Notes(said.append))
    assert (field.contenders, field.running) == ([], {})
    assert said == ["starting Gone", "Gone is left out: it is no engine."]


def test_the_best_batch_size_is_looked_for_and_takes_turns_too():
    ours, theirs, notes = Engine(best=64), Engine(best=8), Notes([].append)
    field = field_of(notes, ours=ours, theirs=theirs)
    measured = measure(field, [BATCH], 2, notes, best_of=["theirs"])
    assert measured.best_batch == {"theirs": 8}
    assert sorted(measured.batch_rates["theirs"]) == list(BATCH_SIZES)
    assert len(measured.figures[BEST_BATCH, "theirs"]) == len(measured.figures["batch", "theirs"]) == 2
    assert [len(items) for items in theirs.seen[-4:]] == [64, 8, 64, 8]


def test_what_is_known_is_handed_on_after_each_run():
    known = []
    field = field_of(Notes([].append), ours=Engine(), theirs=Engine())
    measure(
        field, [MIXED], 2, Notes([].append), keep=lambda so_far: known.append(sum(map(len, so_far.figures.values())))
    )
    assert known == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_while_somebody_starts_ends_those_that_run(error):
    def interrupted():
        raise error

    first = Engine()
    contenders = [Contender("a", "A", frozenset(), lambda: first), Contender("b", "B", frozenset(), interrupted)]
    with pytest.raises(type(error)):
        Field(contenders, Notes([].append))
    assert first.closed


def test_an_engine_of_ours_that_fails_falls_out_as_a_peer_does():
    ours, notes = Engine(), Notes([].append)

    def run(items):
        raise StartError("Too little memory: lower --max-num-seqs.")

    ours.run = run
    Field([Contender("octavo:bf16", "Octavo, bf16", frozenset(), lambda: ours)], notes)
    assert ours.closed
    assert notes.own_failed
    assert notes.left_out[0].why == "Too little memory: lower --max-num-seqs."
