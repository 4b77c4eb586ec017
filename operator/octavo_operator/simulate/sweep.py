"""Many runs, on several processors, in a stated order; and the medians over seeds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import median
from typing import NamedTuple

from .catalogue import ENTRIES
from .cell import Cell, Point, point


class Job(NamedTuple):
    """One run to make."""

    cell: Cell
    policy: str
    value: float
    seed: int


Told = Callable[[int, int, Point], None]
"""Told of each finished run: how many are, how many will be, and the run."""


def jobs_of(cell: Cell, policies: Iterable[str], seeds: Sequence[int], *, sweep: bool) -> list[Job]:
    """Return the runs of a cell: each policy at its default, or swept, over each seed."""
    return [
        Job(cell, policy, value, seed)
        for policy in policies
        for value in (ENTRIES[policy].sweep() if sweep else (ENTRIES[policy].default,))
        for seed in seeds
    ]


def run_one(job: Job) -> Point:
    """Make one run."""
    result = job.cell.run(job.policy, job.value, job.seed)
    return point(job.policy, job.value, job.seed, result, job.cell.objective)


def run_all(jobs: Sequence[Job], workers: int = 0, told: Told | None = None) -> list[Point]:
    """Make the runs and return them in the order of `jobs`, whatever the number of workers (0: one a processor)."""
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if count <= 1:
        points = []
        for job in jobs:
            points.append(run_one(job))
            if told is not None:
                told(len(points), len(jobs), points[-1])
        return points
    found: dict[int, Point] = {}
    # Forked from a clean process: what this one has open stays its own.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures = {pool.submit(run_one, job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                index = futures[future]
                found[index] = future.result()
                if told is not None:
                    told(len(found), len(jobs), found[index])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[index] for index in range(len(jobs))]


class Spread(NamedTuple):
    """Runs that differ by their seed alone: the median of each number, and how far attainment and cost went."""

    median: Point
    runs: int
    attainment: tuple[float, float]
    gpu_hours: tuple[float, float]


def spreads(points: Sequence[Point]) -> list[Spread]:
    """Return the runs of equal policy and value together, in the order of their first run."""
    groups: dict[tuple[str, float], list[Point]] = {}
    for run in points:
        groups.setdefault((run.policy, run.value), []).append(run)
    return [_spread(group) for group in groups.values()]


def _spread(group: Sequence[Point]) -> Spread:
    first = group[0]
    numbers = {
        name: median(getattr(run, name) for run in group) for name in Point._fields if name not in ("policy", "value")
    }
    # What must never happen counts at its worst, not at its median.
    numbers |= {name: max(getattr(run, name) for run in group) for name in ("cut", "unfinished", "peak")}
    attainments, costs = [run.attainment for run in group], [run.gpu_hours for run in group]
    return Spread(
        first._replace(**numbers),
        len(group),
        (min(attainments), max(attainments)),
        (min(costs), max(costs)),
    )
