"""`--tune`: measure launch parameters on the device, class by class, and write the target's table.

From the parameters in use one after another is varied and the best value kept: a few candidates a class, each of which
must be compiled. What spills registers, does not fit, or gives another result is no candidate. Classes that the time
does not suffice for keep what the table says of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.checks_case import difference
from benchmarks.on_gpu.machine import Bench, describe
from benchmarks.on_gpu.report import sentence_of
from benchmarks.on_gpu.timing import seconds_of
from benchmarks.on_gpu.tune_class import Class, Runs
from benchmarks.on_gpu.tune_classes import classes
from torch import Tensor

from octavo_kernels.triton.configurations import TABLES, Entry, write_table

SAME = 2e-2
"""The most that a candidate's result may differ from that of the parameters in use, in parts of its largest value."""
WORTH = 0.97
"""Of the time so far that a candidate must stay below: less is noise."""


def run(bench: Bench, seconds: float, table: Path | None) -> int:
    """Measure for `seconds`, write the table, and return the exit status."""
    if table is None and bench.tiny:
        print("The interpreter has no table to be tuned: name a file with --table.")
        return 2
    deadline = time.perf_counter() + seconds
    entries, left = [], 0
    for each in classes(bench):
        if time.perf_counter() > deadline:
            left += 1
            continue
        found = tune(bench, each, deadline)
        if found is not None:
            entries.append(Entry(each.kernel, each.shape, found))
    path = table or TABLES / f"{bench.configurations.target.name}.json"
    told = describe(bench.device)
    measured = ", ".join(
        f"{name} {told[name]}" for name in ("device", "driver_version", "torch", "triton") if name in told
    )
    write_table(path, _merged(bench.configurations.entries, entries), measured)
    print(f"{len(entries)} classes written to {path}" + (f", {left} had no time left" if left else ""))
    print("Now compile what it selects: python -m octavo_kernels.triton.compile_all")
    return 0


def tune(bench: Bench, of: Class, deadline: float) -> Any | None:
    """Return the best parameters of a class, None if not even those in use run."""
    try:
        runs = of.build(of.used)
        results = [run().clone() for run in runs]
        before = _times(bench, runs)
    except Exception as error:  # noqa: BLE001 - told, and the next class is tuned
        print(f"{of.sentence()}: what is in use does not run: {sentence_of(error)}", flush=True)
        return None
    best, least = of.used, 1.0
    for name, values in of.axes.items():
        for value in values:
            candidate = best._replace(**{name: value})
            if candidate == best or time.perf_counter() > deadline:
                continue
            score = _score(bench, of, candidate, results, before)
            if score < least * WORTH:
                best, least = candidate, score
    changed = {name: value for name, value in best._asdict().items() if value != getattr(of.used, name)}
    told = ", ".join(f"{name} {value}" for name, value in changed.items()) or "as it was"
    print(f"{of.sentence()}: {told}, {least:.0%} of the time", flush=True)
    return best


def _score(bench: Bench, of: Class, candidate: Any, results: Sequence[Tensor], before: Sequence[float]) -> float:
    """Return the mean share of the time that the parameters in use take; infinity for what is no candidate."""
    known = _compiled()
    try:
        runs = of.build(candidate)
        same = all(difference(run(), result) <= SAME for run, result in zip(runs, results, strict=True))
        if not same or any(_spills(kernel) for place, kernel in _compiled().items() if place not in known):
            return float("inf")
        taken = _times(bench, runs)
    except Exception:  # noqa: BLE001 - too much shared memory, too many registers, a tile that does not fit
        return float("inf")
    return sum(now / then for now, then in zip(taken, before, strict=True)) / len(before)


def _times(bench: Bench, runs: Runs) -> list[float]:
    return [seconds_of(each, bench.device, bench.seconds / 8) for each in runs]


def _compiled() -> dict[int, Any]:
    """Return the compiled kernels of this process."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("octavo_kernels.triton"):
            for kernel in vars(module).values():
                for cache in getattr(kernel, "device_caches", {}).values():
                    found |= {id(compiled): compiled for compiled in cache[0].values()}
    return found


def _spills(kernel: Any) -> bool:
    return bool(getattr(kernel, "n_spills", 0))


def _merged(before: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Return all entries; those measured now stand for their classes."""
    now = {(entry.kernel, tuple(sorted(entry.shape.items()))) for entry in entries}
    kept = [entry for entry in before if (entry.kernel, tuple(sorted(entry.shape.items()))) not in now]
    return [*kept, *entries]
