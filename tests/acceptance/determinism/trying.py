"""One subject under every circumstance: each cell says whether all was told as it was told alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from octavo_engine.bench.harness import BenchError, Harness
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.start import Engine

from . import asking
from .asking import Asked
from .circumstances import AT_ONCE, REFERENCE, Circumstance
from .drafts import Oracle
from .driving import Heard, drive
from .preempting import LEAST, PreemptingScheduler
from .restarting import tell_after_a_kill
from .subjects import Prepared, Subject, prepared
from .told import Key, NotTold, Told, digest, first_difference

AMPLE_BLOCKS = 1024
"""More than AT_ONCE of the longest sequences take."""


class Cell(NamedTuple):
    """One subject under one circumstance. `difference`: the first from what was told alone, or why there is nothing.

    evidence: figures that show that the circumstance was so. digest: of all that was told.
    """

    subject: str
    circumstance: str
    difference: str
    evidence: str
    digest: str
    seconds: float


def attempt(
    subject: Subject, circumstances: Sequence[Circumstance], count: int, seed: int, tell: Callable[[Cell], None]
) -> list[Cell]:
    """Ask `count` requests under each; `circumstances` begin with the one that the others are compared with."""
    assert circumstances[0] is REFERENCE
    cells: list[Cell] = []
    with prepared(subject) as ready:
        trial = _Trial(ready, asking.make(count, seed, ready.ids), seed)
        try:
            for circumstance in circumstances:
                cells.append(_cell(subject, circumstance, trial))
                tell(cells[-1])
                if circumstance is REFERENCE and cells[-1].difference:
                    break
        finally:
            trial.harness.unload()
    return cells


def _cell(subject: Subject, circumstance: Circumstance, trial: _Trial) -> Cell:
    began = time.perf_counter()
    told: dict[Key, Told] = {}
    try:
        told, evidence, difference = trial.under(circumstance)
    except (NotTold, BenchError) as error:
        evidence, difference = "", f"{type(error).__name__}: {error}"
    return Cell(
        subject.name, circumstance.name, difference, evidence, digest(told), round(time.perf_counter() - began, 1)
    )


class _Trial:
    """A loaded subject, the requests, and what they were told alone."""

    def __init__(self, ready: Prepared, asked: Sequence[Asked], seed: int) -> None:
        self.harness = Harness(ready.config, lambda stage, fraction: None)
        self._asked = asked
        self._adapters = ready.adapters
        self._seed = seed
        self._expected: dict[Key, Told] = {}
        layout = self.harness.model.executable.layout
        self._block_bytes = sum(group.bytes_per_block for group in layout.groups)
        working_set = asking.working_set_blocks(asked, AT_ONCE, layout.block_size)
        self._longest = -(-asking.MAX_MODEL_LEN // layout.block_size)
        self._working_set = max(working_set, self._longest)

    def under(self, circumstance: Circumstance) -> tuple[dict[Key, Told], str, str]:
        """Ask; return what was told, the evidence, and the first difference. Raises NotTold, BenchError."""
        changes = {**circumstance.changes, "kv_cache_memory": self._pool_blocks(circumstance) * self._block_bytes}
        if circumstance.killed:
            config = msgspec.structs.replace(self.harness.config, **changes)
            told = tell_after_a_kill(config, self._asked, self._adapters)
            return told, "a process was killed", first_difference(self._asked, self._expected, told)
        heard, fewest = self._drive(circumstance, changes)
        if circumstance is REFERENCE:
            self._expected = heard.told
        difference = first_difference(self._asked, self._expected, heard.told) or circumstance.unproven(heard.snapshot)
        if not difference and circumstance.preempted and not circumstance.drafts and fewest < LEAST:
            difference = f"it was not so: a sequence was preempted {fewest} times only"
        return heard.told, _evidence(circumstance, heard, fewest), difference

    def _pool_blocks(self, circumstance: Circumstance) -> int:
        if not circumstance.pool_share:
            return AMPLE_BLOCKS
        return max(self._longest, self._working_set // circumstance.pool_share)

    def _drive(self, circumstance: Circumstance, changes: dict[str, Any]) -> tuple[Heard, int]:
        """Ask in this process; return what was told, and how often the test's scheduler preempted at the least."""
        engine = self.harness.build(**changes)
        scheduler = None
        if circumstance.preempted or circumstance.drafts:
            engine, scheduler = self._disturbed(engine, circumstance)
        config: EngineConfig = msgspec.structs.replace(self.harness.config, **changes)
        heard = drive(engine, config, self._asked, circumstance.at_once, circumstance.passes, adapters=self._adapters)
        return heard, min(scheduler.counts) if scheduler is not None else 0

    def _disturbed(self, engine: Engine, circumstance: Circumstance) -> tuple[Engine, PreemptingScheduler | None]:
        """Exchange the scheduler of an engine for one that preempts, or drafts, knowing what will be written."""
        config = engine.scheduler.config
        # Sequences are numbered as they are submitted, choice after choice.
        keys = [(index, choice) for index, each in enumerate(self._asked) for choice in range(each.submit.n)]
        answers = [self._expected[key].tokens for key in keys]
        prompts = [self._asked[request].prompt_tokens for request, _ in keys]
        drafts = Oracle(prompts, answers, self._seed) if circumstance.drafts else None
        if not circumstance.preempted:
            return engine._replace(scheduler=create_scheduler(config, drafts)), None
        scheduler = PreemptingScheduler(config, drafts, [len(answer) for answer in answers], self._seed)
        return engine._replace(scheduler=scheduler), scheduler


def _evidence(circumstance: Circumstance, heard: Heard, fewest: int) -> str:
    figures = [f"{getattr(heard.snapshot, name)} {name.replace('_', ' ')}" for name in circumstance.proof]
    if circumstance.preempted:
        figures.append(f"each at least {fewest} times")
    return ", ".join(figures)


def digests_by_precision(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Return, for each model and precision, the digest of what each variant told alone: equal ones, if they agree."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.circumstance == REFERENCE.name:
            found.setdefault(cell.subject.rsplit(", ", 1)[0], []).append(cell.digest)
    return found
