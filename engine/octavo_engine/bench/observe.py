"""What the scheduler does, seen once a step without changing it: an executor that counts before it passes a plan on."""

from __future__ import annotations

from itertools import takewhile

import msgspec

from octavo_engine.core.kv import NO_BLOCK
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import StepPlan
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.executor import Executed, Executor, Pending
from octavo_engine.worker.grammar import Grammar


class Observed(msgspec.Struct):
    """Sums over steps. `crowded_*` only over steps while anybody waited: then the cache is what limits."""

    steps: int = 0
    tokens: int = 0
    padding: int = 0
    crowded_steps: int = 0
    crowded_stored: int = 0
    """Tokens in the cache, shared ones counted once."""
    crowded_reserved: int = 0
    """Token slots of all blocks held."""
    crowded_running: int = 0
    peak_running: int = 0
    peak_blocks: int = 0

    @property
    def kv_utilization(self) -> float:
        """Tokens stored ÷ slots reserved, while anything waits; 0 if nothing ever did."""
        return self.crowded_stored / self.crowded_reserved if self.crowded_reserved else 0.0

    @property
    def in_flight(self) -> float:
        """Sequences in flight, on average while anything waits; the most there were if nothing ever did."""
        return self.crowded_running / self.crowded_steps if self.crowded_steps else float(self.peak_running)


class ObservingExecutor:
    """`Executor` that looks at the scheduler with each plan, on the loop's own thread, then passes the plan on."""

    def __init__(self, inner: Executor, scheduler: Lifecycle) -> None:
        """Watch `scheduler`, whose plans `inner` executes."""
        self.seen = Observed()
        self._inner = inner
        self._scheduler = scheduler

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """See `Executor`."""
        self._inner.register(sequence, settings, grammar)

    def forget(self, sequence: int) -> None:
        """See `Executor`."""
        self._inner.forget(sequence)

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """See `Executor`."""
        self._inner.set_adapter(slot, adapter)

    def probe(self) -> Pending[None]:
        """See `Executor`."""
        return self._inner.probe()

    def check(self) -> None:
        """See `Executor`."""
        self._inner.check()

    def close(self) -> None:
        """See `Executor`."""
        self._inner.close()

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Count, once the plan is on its way."""
        pending = self._inner.submit(plan)
        self._look(plan)
        return pending

    def _look(self, plan: StepPlan) -> None:
        seen, scheduler = self.seen, self._scheduler
        seen.steps += 1
        seen.tokens += sum(row.num_tokens for row in plan.rows)
        seen.padding += sum(row.padding for row in plan.rows)
        active = sum(pool.num_active for pool in scheduler.kv.pools)
        seen.peak_blocks = max(seen.peak_blocks, active)
        seen.peak_running = max(seen.peak_running, len(scheduler.running))
        if not len(scheduler.waiting):
            return
        seen.crowded_steps += 1
        seen.crowded_running += len(scheduler.running)
        seen.crowded_stored += stored_tokens(scheduler)
        seen.crowded_reserved += active * scheduler.config.block_size


def stored_tokens(scheduler: Lifecycle) -> int:
    """Return the tokens of running sequences that the cache holds, those in shared blocks counted once.

    A block held by more than one sequence is a full one: what its further holders see in it is taken off again.
    """
    size, stored = scheduler.config.block_size, 0
    for index, (pool, group) in enumerate(zip(scheduler.kv.pools, scheduler.config.groups, strict=True)):
        held: dict[int, int] = {}
        for sequence in scheduler.running:
            freed = _freed_blocks(sequence, index) if group.window else 0
            stored += sequence.num_computed - freed * size
            if scheduler.config.prefix_sharing:
                for block in sequence.tables[index][freed : sequence.num_computed // size]:
                    if pool.references(block) > 1:
                        held[block] = held.get(block, 0) + 1
        stored -= size * sum(count - 1 for count in held.values())
    return stored


def _freed_blocks(sequence: Sequence, group: int) -> int:
    return sum(1 for _ in takewhile(lambda block: block == NO_BLOCK, sequence.tables[group]))
