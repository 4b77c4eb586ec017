"""One cell of a comparison: a trace, a pod, a cold start and an objective; and one run in it, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from .calibrate import Calibration
from .catalogue import ENTRIES, Setting, load_curve
from .faults import Faults
from .fleet import FleetSettings, simulate
from .pod import Startup
from .policy import Bounds, Removal
from .result import Objective, Result
from .routing import ROUTERS
from .synthetic import SYNTHETIC
from .trace import Trace, TraceError, load

DEFAULT_BOUNDS: Final = Bounds(1, 32)
WARM_SECONDS: Final = 120.0
"""The fleet begins as the first two minutes need it: nobody is judged by an empty start."""


@lru_cache(maxsize=32)
def open_trace(source: str, seed: int) -> Trace:
    """Return the trace of a file, or the synthetic one of a name and seed. Raises TraceError."""
    if source in SYNTHETIC:
        return SYNTHETIC[source](seed)
    path = Path(source)
    if not path.exists():
        raise TraceError(f"{source!r} is neither a file nor one of {', '.join(SYNTHETIC)}")
    return load(path)


@dataclass(frozen=True, slots=True)
class Cell:
    """What all policies are judged in. `source`: a file or a synthetic trace's name. `seconds`: 0 is the whole trace.

    `load`: every request so many times. With `own_removal` each policy takes pods away as its project does; otherwise
    all of them have Octavo's actuator, which is what they have as External scalers of an InferenceService.
    """

    source: str
    cold_start: float
    objective: Objective
    calibration: Calibration = field(default_factory=Calibration)
    bounds: Bounds = DEFAULT_BOUNDS
    nodes: int = 64
    seconds: float = 0.0
    load: int = 1
    faults: Faults = field(default_factory=Faults)
    own_removal: bool = False
    routing: str = "fewest"
    """One of `ROUTERS`."""
    initial_replicas: int = 0
    """0: what the first minutes need."""

    @property
    def seeded(self) -> bool:
        """Say whether its trace depends on a seed."""
        return self.source in SYNTHETIC

    def trace(self, seed: int) -> Trace:
        """Return its trace. Raises TraceError."""
        trace = open_trace(self.source, seed if self.seeded else 0)
        if self.seconds:
            trace = trace.cut(self.seconds)
        return trace.scaled(self.load) if self.load > 1 else trace

    def run(self, policy: str, value: float, seed: int) -> Result:
        """Return what becomes of the trace under a policy of the catalogue, its target set to `value`."""
        trace = self.trace(seed)
        setting = Setting(trace, self.calibration, self.objective, self.cold_start, self.bounds)
        settings = FleetSettings(
            calibration=self.calibration,
            startup=Startup(seconds=self.cold_start),
            faults=self.faults,
            initial_replicas=self.initial_replicas or initial_replicas(trace, self.calibration, self.bounds),
            nodes=self.nodes,
            removal=None if self.own_removal else Removal.CORDON,
            seed=seed,
        )
        return simulate(trace, ENTRIES[policy].make(value, setting), settings, ROUTERS[self.routing](trace.hash_block))


def initial_replicas(trace: Trace, calibration: Calibration, bounds: Bounds) -> int:
    """Return the pods that the trace's first two minutes need at 80 %."""
    curve = load_curve(trace.cut(WARM_SECONDS), calibration).smoothed(WARM_SECONDS / 2)
    return bounds.clamp(math.ceil(curve.peak(0.0, WARM_SECONDS) / 0.8))


class Point(NamedTuple):
    """One run in numbers: seconds, GPU-hours, shares from 0 to 1, counts. `unfinished` requests never ended."""

    policy: str
    value: float
    seed: int
    attainment: float
    gpu_hours: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    held_p99: float
    requests: int
    done: int
    refused: int
    expired: int
    too_long: int
    cut: int
    unfinished: int
    changes: int
    reversals: int
    turns: int
    peak: int
    preemptions: int
    hit_share: float
    hours: float

    @property
    def reversals_per_hour(self) -> float:
        """Return the direction reversals within ten minutes, an hour."""
        return self.reversals / self.hours


def point(policy: str, value: float, seed: int, result: Result, objective: Objective) -> Point:
    """Return a run in numbers."""
    outcomes: Mapping[str, int] = result.outcomes
    return Point(
        policy=policy,
        value=value,
        seed=seed,
        attainment=result.attainment(objective),
        gpu_hours=result.gpu_hours,
        ttft_p50=result.ttft(50),
        ttft_p99=result.ttft(99),
        itl_p50=result.itl(50),
        itl_p99=result.itl(99),
        held_p99=result.queueing(99),
        requests=len(result.tickets),
        done=outcomes.get("done", 0),
        refused=outcomes.get("refused", 0),
        expired=outcomes.get("expired", 0),
        too_long=outcomes.get("too_long", 0),
        cut=outcomes.get("cut", 0),
        unfinished=outcomes.get("", 0),
        changes=len([change for change in result.changes if change.at <= result.seconds]),
        reversals=result.reversals,
        turns=result.turns,
        peak=result.peak,
        preemptions=result.preemptions,
        hit_share=result.hit_tokens / result.prompt_tokens if result.prompt_tokens else 0.0,
        hours=result.seconds / 3600,
    )
