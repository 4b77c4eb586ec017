"""The executor over ranks: everything that changes what is computed goes to the followers first, then to rank 0's own.

Sampling settings and grammars stay on rank 0, which tells the others on their devices what it has sampled.
"""

from __future__ import annotations

from octavo_engine.core.step import StepPlan
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.executor import Executed, Executor, Pending
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.grammar import Grammar
from octavo_engine.worker.ranks.leader import RankedAdapter, Ranks
from octavo_engine.worker.ranks.messages import NO_ADAPTER_NUMBER, Execute, Probe, SetAdapter


class RankedExecutor:
    """Executes plans on all ranks. Whatever ends one of them is raised by `check`, and by the result of a plan."""

    def __init__(self, own: Executor, ranks: Ranks) -> None:
        """`own` computes rank 0's share. The ranks have begun."""
        self._own = own
        self._ranks = ranks

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give a sequence's sampling settings, which rank 0 alone reads."""
        self._own.register(sequence, settings, grammar)

    def forget(self, sequence: int) -> None:
        """Drop the settings of a sequence that has ended."""
        self._own.forget(sequence)

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing, for the plans to come. Raises TypeError unless all ranks opened it
        (`Ranks.open_adapter`).
        """
        if adapter is None:
            self._ranks.send(SetAdapter(slot, NO_ADAPTER_NUMBER))
            self._own.set_adapter(slot, None)
        elif isinstance(adapter, RankedAdapter):
            self._ranks.send(SetAdapter(slot, adapter.number))
            self._own.set_adapter(slot, adapter.own)
        else:
            raise TypeError("One rank alone has opened this adapter.")

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Queue a plan on every rank."""
        self._ranks.send(Execute(plan))
        return _Settled(self._own.submit(plan), self._ranks, plan.number)

    def probe(self) -> Pending[None]:
        """Compute one token of nobody's on every rank. A follower that cannot ends."""
        self._ranks.send(Probe())
        return self._own.probe()

    def check(self) -> None:
        """Raise RankError if a rank has ended, or computes something else than the others."""
        self._ranks.check()
        self._own.check()

    def close(self) -> None:
        """Finish what was given on every rank, and have the followers leave."""
        self._own.close()
        self._ranks.close()


class _Settled:
    """A plan's result, once the followers are known to be where rank 0 is."""

    def __init__(self, own: Pending[Executed], ranks: Ranks, number: int) -> None:
        self._own = own
        self._ranks = ranks
        self._number = number

    def result(self) -> Executed:
        """Return rank 0's. Raises StepError if the step failed on all ranks alike, RankError if not alike."""
        try:
            executed = self._own.result()
        except StepError as error:
            self._ranks.settle(error)
            raise
        self._ranks.passed(self._number)
        return executed
