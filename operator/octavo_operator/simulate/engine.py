"""A block-accurate model of the engine: its queue, running set, token budget, prefix cache and preemption.

It follows `octavo_engine.core.scheduler`: running sequences first, in order of arrival; then waiting ones, first come
first served, a whole prompt at a time or not at all; nothing is admitted in a step that preempted; the victim is the
latest arrival; identical cold prompts compute once. But it computes *groups* of steps: between two events (an arrival,
an end, a full pool) decode steps differ only in the tokens of context they read, so their ends are a formula.

    step   S       S+1      S+2        ...        S+k
           |--------|--------|---------------------|     one group: k decode steps, nobody joins or leaves
           ^ planned          ^ an arrival cuts the group at the end of the step in progress
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence as Many
from operator import attrgetter
from typing import Final

from .calibrate import Calibration
from .decoding import Decoding
from .holdback import HoldBack
from .pool import Pool
from .sequence import Sequence
from .tally import Tally

_EPSILON: Final = 1e-9
_key = attrgetter("order")


class Engine:
    """One engine. Times are simulated seconds and never go back; call `advance` up to a time before asking at it."""

    def __init__(self, calibration: Calibration, now: float = 0.0) -> None:
        """Start empty, with a cold cache."""
        self.calibration = calibration
        self.pool = Pool(calibration.blocks)
        self.tally = Tally()
        self.now = now
        self._watermark = int(calibration.watermark * calibration.blocks)
        self._waiting: list[Sequence] = []
        self._waiting_tokens = 0
        self._holdback = HoldBack()
        self._prefilling: list[Sequence] = []
        self._decoding = Decoding(calibration)
        # The group in progress: when it began, its steps, how many of them are counted, and their times.
        self._began = now
        self._steps = 0
        self._counted = 0
        self._first = 0.0
        self._growth = 0.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._finished: list[Sequence] = []
        self.started: list[Sequence] | None = None
        """Those that got their first token since it was emptied, if somebody sets it to a list."""

    # --- What is asked from outside --------------------------------------------------------------------------------
    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a first or a resumed step."""
        return len(self._waiting) + len(self._holdback.followers)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the waiting sequences have to compute."""
        return self._waiting_tokens

    @property
    def oldest_arrival(self) -> float | None:
        """When the oldest waiting sequence came, None without any."""
        first = [sequence.arrival for sequence in self._waiting[:1]]
        return min([*first, *(sequence.arrival for sequence in self._holdback.followers.values())], default=None)

    def can_ever_hold(self, sequence: Sequence) -> bool:
        """Say whether the pool could hold the sequence alone: the engine refuses any other at submission."""
        return self.calibration.blocks_for(sequence.prompt + sequence.output) <= self.pool.total

    def next_time(self) -> float:
        """Return when the group in progress ends; infinite while idle."""
        return self._end_of(self._steps) if self._steps else math.inf

    def submit(self, sequence: Sequence, now: float) -> None:
        """Take in a sequence; the engine must have been advanced to `now`."""
        queue_was_empty = not self._waiting
        self._enqueue(sequence)
        if not self._steps:
            self._plan(now)
        elif queue_was_empty and self._steps > 1:
            # First come first served: behind a queue nothing changes.
            self._count_to(now)
            self._steps = min(self._steps, self._counted + 1)

    def advance(self, now: float) -> list[Sequence]:
        """Go on to `now` and return the sequences that ended on the way, in order, with their times set."""
        while self._steps and (end := self._end_of(self._steps)) <= now + _EPSILON:
            self._complete(end)
            self._plan(end)
        if self._steps:
            self._count_to(now)
        self.now = now
        ended, self._finished = self._finished, []
        return ended

    def abandon(self) -> list[Sequence]:
        """Return every sequence that is not ended: the process was killed, and this object is used no more."""
        while (decoding := self._decoding.last()) is not None:
            self._decoding.leave(decoding)
            self._prefilling.append(decoding)
        self._steps = 0
        return sorted([*self._waiting, *self._holdback.followers.values(), *self._prefilling], key=_key)

    def check(self) -> None:
        """Raise AssertionError unless blocks, counts and histogram agree."""
        self._decoding.check()
        own = sum(sequence.blocks - len(sequence.names) for sequence in self._prefilling)
        # A step in progress has its blocks already.
        ahead = 1 if self._steps else 0
        for sequence in self._decoding.members.values():
            own += self.calibration.blocks_for(self._decoding.length(sequence) + ahead) - len(sequence.names)
        self.pool.check(own + self.pool.num_named_held)
        assert self.running <= self.calibration.max_num_seqs, "more sequences run than there are slots"

    # --- Time ------------------------------------------------------------------------------------------------------
    def _end_of(self, steps: int) -> float:
        return self._began + steps * self._first + self._growth * steps * (steps - 1) / 2

    def _steps_by(self, now: float) -> int:
        """Return how many steps of the group are over at `now`."""
        elapsed = now - self._began + _EPSILON
        if self._growth > 0:
            half = self._first - self._growth / 2
            steps = int((math.sqrt(half * half + 2 * self._growth * elapsed) - half) / self._growth)
        else:
            steps = int(elapsed / self._first)
        while steps and self._end_of(steps) > now + _EPSILON:
            steps -= 1
        while self._end_of(steps + 1) <= now + _EPSILON:
            steps += 1
        return min(steps, self._steps)

    def _count_to(self, now: float) -> None:
        """Count the steps that are over, and the blocks of the one in progress."""
        if self._chunks:
            return
        over = self._steps_by(now)
        # One step's blocks were taken when the group began; the last step is counted when the group is completed.
        self._count(min(over, self._steps - 1) - self._counted, take=True)

    def _count(self, steps: int, *, take: bool) -> None:
        """Count `steps` decode steps; `take`: and the blocks of as many steps after the one that is paid for."""
        if steps <= 0:
            return
        decoding = self._decoding
        seconds = self._first + self._growth * (self._counted + (steps - 1) / 2)
        self.tally.decoded(steps * len(decoding), seconds)
        self._counted += steps
        decoding.advance(steps)
        if take:
            self.pool.take(decoding.needed(decoding.step - steps + 1, steps))

    # --- One group -------------------------------------------------------------------------------------------------
    def _complete(self, now: float) -> None:
        """Finish the group that ends now: tokens appear, prompts are computed, sequences end."""
        self._count_rest()
        self._steps = self._counted = 0
        ended = []
        for sequence, tokens in self._chunks:
            sequence.computed += tokens
            self._publish(sequence)
            if sequence.computed == sequence.target:
                self._prefilling.remove(sequence)
                if self._first_token(sequence, now):
                    ended.append(sequence)
        self._chunks = []
        while (decoded := self._decoding.pop_ended()) is not None:
            ended.append(decoded)
        # In the order of the rows: it decides whose cached blocks are the oldest.
        for sequence in sorted(ended, key=_key):
            self._end(sequence, now)

    def _count_rest(self) -> None:
        """Count what is left of the group; the blocks of all its steps but those not yet begun are taken."""
        left = self._steps - self._counted
        if left > 1:
            self._count(left - 1, take=True)
        self._count(1, take=False)

    def _first_token(self, sequence: Sequence, now: float) -> bool:
        """Give a sequence whose prompt is computed its next token; True if it is its last."""
        if sequence.first_token_at is None:
            sequence.first_token_at = now
            self.tally.started(now - sequence.arrival)
            if self.started is not None:
                self.started.append(sequence)
        sequence.generated += 1
        self.tally.generated += 1
        if sequence.generated >= sequence.output:
            return True
        self._decoding.join(sequence)
        return False

    def _end(self, sequence: Sequence, now: float) -> None:
        sequence.finished_at = now
        self._release(sequence)
        self.tally.ended += 1
        self._finished.append(sequence)

    def _plan(self, now: float) -> None:
        """Choose the rows of the next step, and how many steps they stay the same."""
        self._began = now
        one_step = False
        served = self._grow_decoding()
        budget = self.calibration.max_num_batched_tokens - len(self._decoding)
        budget, all_served = self._grow_prefilling(budget)
        if served and all_served:
            self._admit(budget, now)
        elif self._waiting:
            one_step = True
        rows = len(self._decoding)
        tokens = rows + sum(tokens for _, tokens in self._chunks)
        if not tokens:
            self._steps = 0
            return
        cost = self.calibration
        self._first = max(
            cost.step_seconds
            + tokens / cost.prefill_tokens_per_second
            + self._decoding.context * cost.context_token_seconds,
            1e-6,
        )
        self._growth = rows * cost.context_token_seconds
        self._steps = 1 if self._chunks or one_step else self._calm_steps()

    def _calm_steps(self) -> int:
        """Return for how many steps nobody ends and the pool surely suffices."""
        until_end = self._decoding.steps_to_end()
        # n steps take at most ceil(n / block size) blocks a sequence beyond the ones already taken for the first.
        until_full = 1 + self.pool.num_free // len(self._decoding) * self.calibration.block_size
        return max(1, min(until_end, until_full))

    # --- Rows ------------------------------------------------------------------------------------------------------
    def _grow_decoding(self) -> bool:
        """Take the next step's blocks of every decoding sequence; False if somebody was preempted for it."""
        served = True
        while (need := self._decoding.needed(self._decoding.step, 1)) > self.pool.num_free:
            served = False
            victim = self._last()
            if self._decoding.needs_block(victim) and need - 1 <= self.pool.num_free:
                # Only the last of the running sequences lacks a block: it waits, and is not preempted.
                self._stall(victim)
            else:
                self._preempt(victim, paid=False)
        self.pool.take(need)
        return served

    def _stall(self, sequence: Sequence) -> None:
        """Let a decoding sequence wait for a block: it has one token to compute, like a prompt's last."""
        self._decoding.leave(sequence)
        sequence.target = sequence.computed + 1
        insort(self._prefilling, sequence, key=_key)

    def _grow_prefilling(self, budget: int) -> tuple[int, bool]:
        """Give each prompt in progress its chunk; return the budget left, and whether everybody got what they need."""
        served, index = True, 0
        while index < len(self._prefilling):
            sequence = self._prefilling[index]
            index += 1
            count = min(sequence.target - sequence.computed, budget - (len(self._prefilling) - index))
            if count <= 0:
                continue
            need = self.calibration.blocks_for(sequence.computed + count) - sequence.blocks
            while need > self.pool.num_free:
                served = False
                victim = self._last()
                if victim is sequence:
                    break
                self._preempt(victim, paid=True)
            if need > self.pool.num_free:
                continue
            self.pool.take(max(0, need))
            sequence.blocks += max(0, need)
            self._chunks.append((sequence, count))
            budget -= count
        return budget, served

    def _admit(self, budget: int, now: float) -> None:
        """Admit in order while there is budget, a slot and room; the first that does not fit ends it."""
        cost, pool = self.calibration, self.pool
        looks = 2 * cost.max_num_seqs
        while self._waiting and looks and budget > 0 and self.running < cost.max_num_seqs:
            looks -= 1
            sequence = self._waiting[0]
            limit = (sequence.target - 1) // cost.block_size
            named = pool.find(sequence.digests, limit)
            awaited = self._holdback.awaited(sequence.digests, named, limit)
            if awaited is not None:
                del self._waiting[0]
                self._holdback.follow(sequence, awaited)
                continue
            own = 0
            if named == min(len(sequence.digests), limit):
                own = min(pool.run_length(sequence.run), limit - named)
            fresh = cost.blocks_for(sequence.target) - named - own
            touched = own + pool.evictable(sequence.digests, named)
            headroom = self._watermark if self.running else 0
            if fresh + touched + headroom > pool.num_free:
                return
            del self._waiting[0]
            self._start(sequence, named, own, budget, now)
            budget -= self._chunks[-1][1]

    def _start(self, sequence: Sequence, named: int, own: int, budget: int, now: float) -> None:
        """Move the first of the queue into the running set, with the blocks of its first chunk."""
        cost = self.calibration
        self._waiting_tokens -= sequence.target
        self.pool.touch(sequence.digests, named)
        self.pool.take_run(sequence.run, own)
        sequence.names = list(sequence.digests[:named])
        sequence.next_name = named
        sequence.computed = (named + own) * cost.block_size
        count = min(sequence.target - sequence.computed, budget)
        sequence.blocks = cost.blocks_for(sequence.computed + count)
        self.pool.take(sequence.blocks - named - own)
        if sequence.started_at is None:
            sequence.started_at = now
            sequence.cached_tokens = min(sequence.computed, sequence.prompt)
            self.tally.admitted(sequence.prompt, sequence.cached_tokens)
        insort(self._prefilling, sequence, key=_key)
        self._chunks.append((sequence, count))
        self._holdback.lead(sequence, named, (sequence.target - 1) // cost.block_size)

    # --- Changes of state ------------------------------------------------------------------------------------------
    def _enqueue(self, sequence: Sequence) -> None:
        self._waiting_tokens += sequence.target
        insort(self._waiting, sequence, key=_key)

    def _publish(self, sequence: Sequence) -> None:
        """Let the full named blocks of what is computed be found."""
        last = min(sequence.computed // self.calibration.block_size, len(sequence.digests))
        if sequence.next_name >= last:
            return
        new = sequence.digests[sequence.next_name : last]
        sequence.next_name = last
        for digest in new:
            if self.pool.publish(digest):
                sequence.names.append(digest)
            else:
                sequence.doubles += 1
        self._requeue(self._holdback.published(new))

    def _requeue(self, followers: Many[Sequence]) -> None:
        for follower in followers:
            insort(self._waiting, follower, key=_key)

    def _last(self) -> Sequence:
        decoding = self._decoding.last()
        candidates = [*self._prefilling[-1:], *([decoding] if decoding else [])]
        return max(candidates, key=_key)

    def _preempt(self, victim: Sequence, *, paid: bool) -> None:
        """Send a running sequence back to its place in the queue; what it published stays cached.

        `paid`: the blocks of this step's decoding are taken already.
        """
        if victim in self._decoding:
            spare = paid and self._decoding.needs_block(victim)
            self._decoding.leave(victim)
            victim.blocks += spare
        else:
            self._prefilling.remove(victim)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not victim]
        self._release(victim)
        victim.target = victim.prompt + victim.generated
        victim.computed = 0
        self.tally.preemptions += 1
        self._enqueue(victim)

    def _release(self, sequence: Sequence) -> None:
        """Give back every block of a sequence that decodes no more."""
        full = sequence.computed // self.calibration.block_size
        run = max(0, full - len(sequence.names) - sequence.doubles)
        lost = sequence.blocks - len(sequence.names) - run
        self.pool.release(sequence.names, sequence.run, run, lost)
        sequence.names, sequence.doubles, sequence.blocks = [], 0, 0
        self._requeue(self._holdback.withdraw(sequence))
