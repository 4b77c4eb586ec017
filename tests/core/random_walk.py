"""A random walk over the scheduler, the runner and the scripted model, in a tiny cache.

Submissions (some with a grammar, some to be pooled), steps, aborts, preemptions, failing rows and failing steps in any
order, with one and two plans in flight, with drafts and without, in every way of allocating and sharing. Every sequence
that comes through must have given what it gives alone in a large cache, and in the end nothing may be held.
`python -m tests.core.random_walk --operations 10000` prints the figures.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_engine.core.config import BlockReason, CacheGroup, Event, Refusal, Request, SchedulerConfig
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.core.stop import StopRule
from octavo_engine.sampling.settings import SamplingSettings, prepare
from octavo_engine.worker.backends.scripted import EOS_TOKEN, build_scripted
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.host_store import HostStore
from octavo_engine.worker.runner import Runner
from tests.core.drive import Guesses
from tests.core.walk_cases import (
    BLOCK,
    BUDGET,
    CASES,
    GRAMMARS,
    MAX_LEN,
    NAN_TOKEN,
    RAISE_TOKEN,
    SLOTS,
    Alone,
    Case,
    Ending,
    build_model,
    make_compiler,
    make_config,
)


@dataclass
class Figures:
    """What a walk met."""

    operations: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    steps: int = 0
    overlapped: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    forced: int = 0
    recomputed: int = 0
    hits: int = 0
    saved: int = 0
    loaded: int = 0
    held_back: int = 0
    scored: int = 0
    grammars: int = 0
    pooled: int = 0
    survivors: int = 0

    def add(self, other: Figures) -> None:
        """Sum up."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


class Walk:
    """One walk: the engine under test beside the truth, checked after every operation."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.random = random.Random(seed)
        num_blocks = 3 * MAX_LEN // BLOCK if case.allocation == "contiguous" else 18
        model = build_model(case, num_blocks)
        host = HostStore(model.layout, [case.places] * len(model.layout.groups))
        self.runner = Runner(model, max_num_seqs=SLOTS, max_model_len=MAX_LEN, host=host if case.places else None)
        self.scheduler: Lifecycle = create_scheduler(
            make_config(case, model, num_blocks, max_queue_requests=24), Guesses(self.propose) if case.drafts else None
        )
        self.alone = Alone(case)
        self.compiler = make_compiler()
        self.figures = Figures()
        self.in_flight: deque[StepPlan] = deque()
        self.computed: deque[StepResult | StepError] = deque()
        self.expected: dict[int, Ending] = {}
        self.full: dict[int, tuple[int, ...]] = {}
        self.written: dict[int, list[int]] = {}
        self.scores: dict[int, bytes] = {}
        self.logprobs: dict[int, bytes] = {}
        self.started: set[int] = set()
        self.ended: list[int] = []
        self.doomed: set[int] = set()
        self.blocked: set[int] = set()
        self.families = [self._tokens(self.random.randint(8, 28)) for _ in range(3)]
        self._next = 1000

    def run(self, operations: int) -> Figures:
        """Walk, then let everything end."""
        choices = {
            self.submit: 18,
            self.step: 60,
            self.abort: 4,
            self.preempt: 4,
            self.fail: 1,
            self.unblock: 4,
        }
        for _ in range(operations):
            operation = self.random.choices(list(choices), list(choices.values()))[0]
            operation()
            self.figures.operations[operation.__name__] += 1
            self.check()
        self.drain()
        return self.figures

    # --- Operations -----------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """A request of one to three choices, often with a prefix somebody else has."""
        draw = self.random
        prompt = self.families[draw.randrange(3)] + self._tokens(draw.choice((0, 0, 1, 3, 9)))
        if draw.random() < 0.05:
            prompt = self._tokens(draw.randint(1, MAX_LEN + 4))
        fault = draw.random()
        doomed = fault < 0.04
        if doomed:
            place = draw.randrange(len(prompt))
            token = NAN_TOKEN if fault < 0.03 else RAISE_TOKEN
            prompt = (*prompt[:place], token, *prompt[place + 1 :])
        choices = draw.choice((1, 1, 1, 2, 3))
        sequences = tuple(range(self._next, self._next + choices))
        self._next += choices
        stop = StopRule(
            max_tokens=draw.choice((1, 2, 6, 12, 30, 80)),
            min_tokens=draw.choice((0, 0, 4)),
            stop_token_ids=draw.choice(((), (), (101, 116))),
            ignore_eos=draw.random() < 0.2,
        )
        stop = stop._replace(min_tokens=min(stop.min_tokens, stop.max_tokens))
        pooled = draw.random() < 0.1
        if pooled:
            stop = StopRule(0)
        request = Request(
            sequences,
            prompt,
            stop,
            arrival=float(self._next),
            priority=draw.choice((0, 0, 0, 1, -1)),
            salt=draw.choice(("", "", "b")),
            needs_all_positions=not pooled and draw.random() < 0.1,
            pooled=pooled,
            blocked=BlockReason.GRAMMAR if draw.random() < 0.1 else None,
        )
        settings = [self._settings(stop, choice) for choice in range(choices)]
        text = draw.choice(GRAMMARS) if not pooled and draw.random() < 0.3 else ""
        self.figures.grammars += bool(text)
        grammars, apart = ([*self.compiler.compile(text, choices)] if text else [None] * choices for _ in range(2))
        for sequence, setting, grammar in zip(sequences, settings, grammars, strict=True):
            self.runner.register(sequence, setting, grammar)
        refusal = self.scheduler.submit(request)
        if isinstance(refusal, Refusal):
            never = len(prompt) + (not pooled) > MAX_LEN
            assert (refusal.reason == "never_fits") == never or refusal.reason == "queue_full"
            self.figures.refused += 1
            return
        for sequence, setting, grammar in zip(sequences, settings, apart, strict=True):
            # Only the first choice scores the prompt.
            own = request._replace(needs_all_positions=request.needs_all_positions and sequence == sequences[0])
            self.expected[sequence] = Ending((), "", -1) if doomed else self.alone.run(own, setting, grammar)
            self.full[sequence] = prompt + self.expected[sequence].tokens
            self.written[sequence] = []
            self.scores[sequence] = self.logprobs[sequence] = b""
            if doomed:
                self.doomed.add(sequence)
            if request.blocked:
                self.blocked.add(sequence)

    def step(self) -> None:
        """Plan and execute, or commit: up to the case's depth in flight."""
        plan = self.scheduler.schedule() if len(self.in_flight) < self.case.depth else None
        if plan is None:
            if self.in_flight:
                self.commit()
            else:
                self.assert_nothing_to_do()
            return
        self.figures.steps += 1
        self.figures.overlapped += bool(self.in_flight)
        assert plan.rows, "an empty step"
        assert plan.num_tokens <= BUDGET or self.case.policy == "static"
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        self.in_flight.append(plan)
        if self.random.random() < 0.5:
            self.compute(len(self.in_flight))
        if self.case.depth == 1 or self.random.random() < 0.3:
            self.commit()

    def compute(self, count: int) -> None:
        """Let the runner catch up with the oldest `count` plans: ahead of the commits, or only just in time."""
        while len(self.computed) < count:
            plan = self.in_flight[len(self.computed)]
            try:
                self.computed.append(self.runner.execute(plan))
            except StepError as error:
                self.computed.append(error)

    def landed(self) -> tuple[StepPlan, StepResult | StepError]:
        """Take the oldest plan and its result."""
        self.compute(1)
        return self.in_flight.popleft(), self.computed.popleft()

    def commit(self) -> None:
        """Take in the oldest plan's result."""
        plan, result = self.landed()
        if isinstance(result, StepError):
            self.tell(self.scheduler.fail(plan, str(result)))
            return
        for row, answer in zip(plan.rows, result.rows, strict=True):
            self.figures.drafted += len(row.drafts)
            self.figures.accepted += max(0, len(answer.tokens) - 1)
        self.tell(self.scheduler.commit(plan, result))

    def abort(self) -> None:
        """Abort somebody, known or not, dead or alive."""
        known = self.random.choice([*self.live(), *self.ended[-2:], 7])
        event = self.scheduler.abort(known)
        assert (event is not None) == (known in self.expected)
        if event is not None:
            self.tell([event])

    def preempt(self) -> None:
        """Preempt somebody the scheduler would not have."""
        running = [sequence.id for sequence in self.scheduler.running]
        self.figures.forced += self.scheduler.preempt(self.random.choice([*running, 7]))

    def fail(self) -> None:
        """The oldest step in flight raises after all."""
        if self.in_flight:
            plan, _ = self.landed()
            self.doomed |= {row.sequence for row in plan.rows}
            self.tell(self.scheduler.fail(plan, "told to"))

    def unblock(self) -> None:
        """What somebody waited for is there."""
        if self.blocked:
            sequence = self.random.choice(sorted(self.blocked))
            self.blocked.discard(sequence)
            self.scheduler.unblock(sequence)

    # --- Judgement ------------------------------------------------------------------------------------------------

    def tell(self, events: list[Event]) -> None:
        """Compare what is told with the truth."""
        for event in events:
            sequence = event.sequence
            assert sequence in self.expected, f"an event for {sequence}, which has ended"
            self.written[sequence] += event.tokens
            self.scores[sequence] += event.prompt_logprobs
            self.logprobs[sequence] += event.logprobs
            if event.started:
                assert sequence not in self.started, "started twice"
                self.started.add(sequence)
            assert not event.tokens or sequence in self.started
            expected, written = self.expected[sequence], tuple(self.written[sequence])
            if sequence not in self.doomed:
                assert written == expected.tokens[: len(written)], (
                    f"{sequence} wrote {written}, alone {expected.tokens}"
                )
            if event.finish:
                self.end(event, expected, written)

    def end(self, event: Event, expected: Ending, written: tuple[int, ...]) -> None:
        """A sequence has ended."""
        sequence = event.sequence
        if event.finish in ("stop", "length"):
            told = self.scores[sequence], self.logprobs[sequence], event.pooled
            assert Ending(written, event.finish, event.stop_reason, *told) == expected
            self.figures.scored += bool(expected.prompt_logprobs)
            self.figures.pooled += bool(expected.pooled)
            self.figures.survivors += 1
        elif event.finish == "error":
            assert event.detail
        self.figures.endings[event.finish] += 1
        self.ended.append(sequence)
        self.blocked.discard(sequence)
        del self.expected[sequence], self.full[sequence]

    def check(self) -> None:
        """What holds after any operation."""
        for pool in self.scheduler.kv.pools:
            pool.check()
        now = self.scheduler.snapshot(float(self._next))
        total = sum(pool.num_blocks for pool in self.scheduler.kv.pools)
        assert now.blocks_active + now.blocks_cached + now.blocks_free == total
        assert min(now) >= 0
        assert now.running <= SLOTS
        assert now.running + now.waiting == len(self.expected)
        self.figures.held_back = max(self.figures.held_back, len(self.scheduler.hold_back._waits_for))

    def assert_nothing_to_do(self) -> None:
        """A scheduler that plans nothing with nothing in flight has only blocked sequences."""
        assert set(self.expected) <= self.blocked, f"forgotten: {sorted(set(self.expected) - self.blocked)}"

    def drain(self) -> None:
        """Everything ends, in a bounded number of steps, and nothing is left."""
        for sequence in sorted(self.blocked):
            self.scheduler.unblock(sequence)
        self.blocked.clear()
        limit = 50 + 4 * MAX_LEN * len(self.expected)
        while self.scheduler.has_work:
            limit -= 1
            assert limit > 0, f"no end in sight for {sorted(self.expected)}"
            self.step()
            self.check()
        assert not self.expected
        self.scheduler.assert_idle()
        now = self.scheduler.snapshot(0.0)
        self.figures.preemptions = now.preemptions
        self.figures.recomputed = now.recomputed_tokens
        self.figures.hits = now.prefix_hit_tokens
        self.figures.saved, self.figures.loaded = now.host_saved_blocks, now.host_loaded_blocks

    # --- Draws ----------------------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """Return who has not ended."""
        return sorted(self.expected)

    def propose(self, tokens: Sequence[int]) -> Sequence[int]:
        """Guess: often the truth, often spoilt somewhere."""
        known = tuple(tokens)
        following = next((f[len(known) :] for f in self.full.values() if f[: len(known)] == known), ())
        guess = list(following[: self.random.randint(0, 5)])
        if guess and self.random.random() < 0.5:
            guess[self.random.randrange(len(guess))] = self.random.randint(97, 122)
        return guess or self._tokens(self.random.randint(0, 2))

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.choices(range(97, 123), k=count))

    def _settings(self, stop: StopRule, choice: int) -> SamplingSettings:
        held_back = (*(() if stop.ignore_eos else (EOS_TOKEN,)), *stop.stop_token_ids)
        return prepare(
            self.runner.executable.vocab_size,
            seed=self.random.randrange(4),
            choice=choice,
            temperature=self.random.choice((0.0, 0.0, 1.0, 1.7)),
            frequency_penalty=self.random.choice((0.0, 0.0, 1.0)),
            min_tokens=stop.min_tokens,
            held_back_ids=held_back,
            logprobs=self.random.choice((-1, -1, 0, 3)),
        )


def walk_all(operations: int, seed: int) -> Figures:
    """Walk through every case, `operations` in all."""
    figures = Figures()
    each = -(-operations // len(CASES))
    for index, case in enumerate(CASES):
        try:
            figures.add(Walk(case, seed * 1000 + index).run(each))
        except Exception as error:
            raise AssertionError(f"{case} with seed {seed * 1000 + index}: {error}") from error
    return figures


def identical_cold_prompts() -> int:
    """Return how many prompt tokens 64 identical cold prompts of 512 tokens compute in all."""
    model = build_scripted("scripted://?eos=0&max_len=1024&blocks=512")
    model.layout.allocate(model.num_blocks)
    scheduler = create_scheduler(SchedulerConfig(groups=(CacheGroup(512),), max_model_len=1024, max_num_seqs=64))
    runner = Runner(model, max_num_seqs=64, max_model_len=1024)
    for sequence in range(64):
        runner.register(sequence, prepare(model.vocab_size, seed=sequence))
        scheduler.submit(Request((sequence,), tuple(n * 7 % 256 for n in range(512)), StopRule(1)))
    computed = 0
    while (plan := scheduler.schedule()) is not None:
        computed += plan.num_tokens
        scheduler.commit(plan, runner.execute(plan))
    scheduler.assert_idle()
    return computed


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    figures = walk_all(arguments.operations, arguments.seed)
    seconds = time.perf_counter() - started
    print(f"{sum(figures.operations.values())} operations over {len(CASES)} cases in {seconds:.1f} s")
    for name, value in vars(figures).items():
        print(f"  {name}: {dict(value) if isinstance(value, Counter) else value}")
    print(f"64 identical cold prompts of 512 tokens: {identical_cold_prompts()} tokens computed, at most 1536")


if __name__ == "__main__":
    main()
