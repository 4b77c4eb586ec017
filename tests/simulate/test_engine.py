"""The simulated engine: against the real scheduler step by step, an independent LRU, and queueing theory."""

import math
import random
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.simulate.calibrate import Calibration
from octavo_operator.simulate.engine import Engine
from octavo_operator.simulate.sequence import Sequence
from tests.simulate.real_engine import Asked, run


def served(calibration: Calibration, asked: list[Asked], *, look_every: float = 0.0) -> tuple[list[Sequence], Engine]:
    """Serve requests in the simulated engine, checking it at each event; `look_every` seconds somebody scrapes it."""
    engine, ended, look = Engine(calibration), [], 0.0
    moments = sorted((request.at, number) for number, request in enumerate(asked))
    while moments or engine.next_time() < math.inf:
        at = moments[0][0] if moments else math.inf
        now = min(at, engine.next_time(), look if look_every else math.inf)
        ended += engine.advance(now)
        engine.check()
        if look_every and now >= look:
            look += look_every
        while moments and moments[0][0] <= now:
            _, number = moments.pop(0)
            request = asked[number]
            digests = names(request.prompt, calibration.block_size)
            engine.submit(Sequence(number, len(request.prompt), request.output, digests, now), now)
            engine.check()
    return ended, engine


def names(prompt: tuple[int, ...], block_size: int) -> tuple[object, ...]:
    """The prompt's full blocks, each named by all of its prefix."""
    return tuple(prompt[: (block + 1) * block_size] for block in range(len(prompt) // block_size))


@st.composite
def loads(draw: st.DrawFn) -> tuple[Calibration, list[Asked]]:
    size = draw(st.sampled_from((2, 4)))
    calibration = Calibration(
        blocks=draw(st.integers(20, 60)),
        block_size=size,
        step_seconds=0.02,
        prefill_tokens_per_second=1000,
        context_token_seconds=0.0,
        max_num_seqs=draw(st.sampled_from((3, 16))),
        max_num_batched_tokens=draw(st.sampled_from((16, 64))),
        watermark=draw(st.sampled_from((0.0, 0.1))),
    )
    asked, at = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from((0.00013, 0.013717, 0.071371, 0.413137)))
        family, shared = draw(st.integers(0, 2)), draw(st.integers(0, 16))
        own = draw(st.integers(1, 12))
        prompt = (*range(1000 * family, 1000 * family + shared), *range(5000 + 100 * number, 5000 + 100 * number + own))
        output = draw(st.integers(1, calibration.blocks * size - len(prompt)).filter(lambda n: n <= 40) | st.just(1))
        asked.append(Asked(at, prompt, output))
    return calibration, asked


@settings(max_examples=150, deadline=None)
@given(loads())
def test_it_does_what_the_real_scheduler_does(load: tuple[Calibration, list[Asked]]):
    calibration, asked = load
    real = run(calibration, asked)
    ended, engine = served(calibration, asked, look_every=0.31)
    assert {s.order: (pytest.approx(s.first_token_at), pytest.approx(s.finished_at)) for s in ended} == real.times
    assert engine.tally.preemptions == real.preemptions
    assert engine.tally.hit_tokens == real.hit_tokens


@settings(max_examples=60, deadline=None)
@given(loads())
def test_everything_ends_once_and_nothing_is_held_afterwards(load: tuple[Calibration, list[Asked]]):
    calibration, asked = load
    ended, engine = served(calibration, asked)
    assert sorted(sequence.order for sequence in ended) == list(range(len(asked)))
    assert all(sequence.generated == sequence.output for sequence in ended)
    assert engine.tally.generated == sum(request.output for request in asked)
    assert (engine.running, engine.waiting, engine.waiting_tokens, engine.pool.num_active) == (0, 0, 0, 0)


def test_looking_at_it_changes_nothing():
    rng = random.Random(3)
    calibration = Calibration(blocks=80, block_size=4, context_token_seconds=1e-5, max_num_batched_tokens=64)
    asked = [Asked(rng.uniform(0, 20), tuple(range(rng.randrange(1, 60))), rng.randrange(1, 60)) for _ in range(60)]
    plain, _ = served(calibration, asked)
    looked, _ = served(calibration, asked, look_every=0.013)
    assert [(s.order, s.finished_at) for s in looked] == [
        (s.order, pytest.approx(s.finished_at, abs=1e-6)) for s in plain
    ]


def test_prefix_hits_are_those_of_an_independent_lru():
    rng, size, total = random.Random(5), 4, 30
    calibration = Calibration(blocks=total, block_size=size, watermark=0.0)
    cache: OrderedDict[object, None] = OrderedDict()
    asked, expected = [], 0
    for number in range(300):
        # A conversation's turn: what was said so far, and one block more.
        turns, conversation = rng.randrange(1, 6), rng.randrange(12)
        prompt = tuple(conversation * 100 + i for i in range(turns * size + 1))
        asked.append(Asked(number * 10.0, prompt, 1))
        blocks = names(prompt, size)
        hits = 0
        while hits < len(blocks) and blocks[hits] in cache:
            hits += 1
        expected += hits * size
        # One at a time: its blocks are held, what it lacks is taken from the oldest, then its tail goes first.
        for block in blocks[:hits]:
            del cache[block]
        lacking = len(blocks) - hits + 1
        while len(cache) > total - hits - lacking:
            cache.popitem(last=False)
        for block in reversed(blocks):
            cache.pop(block, None)
            cache[block] = None
    ended, engine = served(calibration, asked)
    assert len(ended) == 300
    assert expected > 500
    assert engine.tally.hit_tokens == expected


def test_one_slot_waits_as_long_as_queueing_theory_says():
    # One sequence at a time, one token each, exponential prompts: M/M/1 but for the whole tokens and the step's time.
    rng, rate, service = random.Random(11), 1.0, 0.7
    calibration = Calibration(
        blocks=100_000, step_seconds=0.0, prefill_tokens_per_second=1000, max_num_seqs=1, max_num_batched_tokens=100_000
    )
    engine, ended, at = Engine(calibration), [], 0.0
    for number in range(40_000):
        at += rng.expovariate(rate)
        ended += engine.advance(at)
        tokens = max(1, round(1000 * rng.expovariate(1 / service)))
        engine.submit(Sequence(number, tokens, 1, (), at), at)
    ended += engine.advance(at + 1000)
    sojourn = sum(s.finished_at - s.arrival for s in ended) / len(ended)
    assert sojourn == pytest.approx(service / (1 - rate * service), rel=0.08)


def test_a_killed_engine_gives_everything_back():
    calibration = Calibration(blocks=20, block_size=4, max_num_batched_tokens=16)
    engine = Engine(calibration)
    for number in range(5):
        engine.submit(Sequence(number, 30, 10, (), 0.0), 0.0)
    engine.advance(0.1)
    assert [sequence.order for sequence in engine.abandon()] == list(range(5))
    assert engine.next_time() == math.inf
