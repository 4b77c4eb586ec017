"""What a scaling policy sees of a simulated fleet, and what it answers. Pure: simulated seconds, no clock of its own.

    fleet --(every `period_seconds`; at once for a first held request if `wakes`)--> Policy.desired(FleetSample)
    fleet <------------------------------- Wanted(replicas, reason) ----------------------------------------------

A sample holds what the API server shows, what the last scrapes brought, and what the gateway counts: never the truth of
a pod behind a lost scrape. Rates, averages and percentiles are for the policy to make, from counters that only rise
(as Prometheus does); so every policy smooths as its own project does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from octavo_engine import contract
from octavo_operator.autoscale.types import KVBlocks, Pod, PodState


class Buckets(NamedTuple):
    """A Prometheus histogram since the pod's start: observations at or below each bound, cumulative.

    `bounds` in seconds, ascending, without +Inf; `counts` has one entry more, the last for +Inf (= all observations).
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, seconds: Sequence[float], bounds: tuple[float, ...]) -> Buckets:
        """Return the histogram of some observations, each in seconds."""
        below = [sum(value <= bound for value in seconds) for bound in bounds]
        return cls(bounds, (*below, len(seconds)))

    @classmethod
    def ttft(cls, seconds: Sequence[float] = ()) -> Buckets:
        """Return observations in the engine's own bounds for the time to first token."""
        return cls.of(seconds, contract.TIME_TO_FIRST_TOKEN.buckets)

    @classmethod
    def itl(cls, seconds: Sequence[float] = ()) -> Buckets:
        """Return observations in the engine's own bounds for the time between tokens."""
        return cls.of(seconds, contract.INTER_TOKEN.buckets)


@dataclass(frozen=True, slots=True)
class PodMetrics:
    """One answered scrape of one pod. Gauges are of the moment `at`; counters and histograms run since the pod's start.

    `running`, `waiting`: sequences. `queue_tokens`: prompt tokens of the waiting. `oldest_wait_seconds`: 0 without a
    queue. `kv`: blocks. `prompt_tokens_total` is counted at admission, `generated_tokens_total` as they are made,
    `requests_total` when a request ends, in whatever way.
    """

    at: float
    running: int
    waiting: int
    kv: KVBlocks
    queue_tokens: int = 0
    oldest_wait_seconds: float = 0.0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    requests_total: int = 0
    ttft: Buckets = field(default_factory=Buckets.ttft)
    itl: Buckets = field(default_factory=Buckets.itl)

    @property
    def utilization(self) -> float:
        """Return the share of blocks that sequences hold, 0 … 1. Cached blocks do not count."""
        return self.kv.active / self.kv.total

    @property
    def requests(self) -> int:
        """Return running + waiting."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class PodSample:
    """One pod: as the API server lists it now, and its last answered scrape (None: none was ever answered).

    `age_seconds` is how old `metrics` are now; above one scrape period the latest scrape was lost. `ghost`: the API
    server no longer lists the pod, but its series go on: `metrics` are its last ones under the latest scrape's time, as
    a store repeats them (a policy that asks the store takes them for a pod's).
    """

    pod: Pod
    metrics: PodMetrics | None = None
    age_seconds: float = 0.0
    ghost: bool = False

    @property
    def ready(self) -> bool:
        """Ready and listed; a cordoned pod is ready as well."""
        return self.pod.state is PodState.READY and not self.ghost

    @property
    def starting(self) -> bool:
        """On its way to Ready, pods that no node has room for included."""
        return self.pod.state in (PodState.STARTING, PodState.UNSCHEDULABLE) and not self.ghost

    @property
    def terminating(self) -> bool:
        """Deleted, and finishing what it has."""
        return self.pod.state is PodState.TERMINATING and not self.ghost

    def reported(self, max_age_seconds: float) -> PodMetrics | None:
        """Return the last scrape unless it is older than `max_age_seconds`."""
        return self.metrics if self.metrics is not None and self.age_seconds <= max_age_seconds else None


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """What all gateways together count for the service at the sample's own time: exact, never lost.

    `in_flight`: sent to a pod and not ended; `held_*`: requests that wait in the gateway for a pod, the KV blocks and
    prompt tokens they will need, and the oldest one's wait. `in_flight_seconds_total` is the integral of in_flight +
    held over time: its rate is the average concurrency.
    """

    arrivals_total: int = 0
    finished_total: int = 0
    in_flight: int = 0
    in_flight_seconds_total: float = 0.0
    held_requests: int = 0
    held_blocks: int = 0
    held_tokens: int = 0
    held_oldest_seconds: float = 0.0

    @property
    def requests(self) -> int:
        """Return every request that is not ended."""
        return self.in_flight + self.held_requests


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at time `at` (seconds of the simulation's clock). `replicas` is the Deployment's count as it stands.

    With a policy that cordons, `replicas` still counts marked pods (they leave it when they are empty).
    """

    at: float
    replicas: int
    pods: tuple[PodSample, ...] = ()
    gateway: GatewaySample = GatewaySample()

    @property
    def ready(self) -> tuple[PodSample, ...]:
        """Return the ready pods."""
        return tuple(pod for pod in self.pods if pod.ready)

    @property
    def starting(self) -> tuple[PodSample, ...]:
        """Return the pods that are not ready yet."""
        return tuple(pod for pod in self.pods if pod.starting)

    @property
    def listed(self) -> tuple[PodSample, ...]:
        """Return the pods that count against `replicas`: no ghost, not terminating, not ended."""
        return tuple(pod for pod in self.pods if pod.pod.present and not pod.ghost)


class Wanted(NamedTuple):
    """The replicas that shall be, already within the policy's bounds, and why: CamelCase, stable for tests."""

    replicas: int
    reason: str


class Bounds(NamedTuple):
    """minReplicas and maxReplicas, both included."""

    low: int = 1
    high: int = 100

    def clamp(self, replicas: int) -> int:
        """Return the nearest count within the bounds."""
        return min(self.high, max(self.low, replicas))


class Removal(StrEnum):
    """What happens to a pod that is one too many."""

    CORDON = "Cordon"
    """`autoscale.actuate` chooses the pod with the least work; nothing new goes there; it leaves when it is empty."""
    DRAIN = "Drain"
    """The ReplicaSet chooses; the pod gets nothing new and finishes its requests within its grace period."""
    TERMINATE = "Terminate"
    """The ReplicaSet chooses; the pod ends within Kubernetes' default grace of 30 s, open streams are cut."""


class Policy(Protocol):
    """One scaling policy for one service. It may remember; equal samples in equal order give equal answers.

    The fleet calls `desired` every `period_seconds` of simulated time, the first time at the start, with scrapes made
    every `scrape_seconds`; and, if `wakes`, also at once when a request is held while `replicas` is 0. What `desired`
    returns is written to the Deployment as it is.
    """

    @property
    def name(self) -> str:
        """Return the name it has in reports, target included."""
        ...

    @property
    def period_seconds(self) -> float:
        """Return how often it looks."""
        ...

    @property
    def scrape_seconds(self) -> float:
        """Return how often pods are scraped for it."""
        ...

    @property
    def wakes(self) -> bool:
        """Return whether the first request of a service at zero reaches it without waiting for the period."""
        ...

    @property
    def removal(self) -> Removal:
        """Return how its project takes a pod away. A comparison of autoscalers alone may overrule it."""
        ...

    def desired(self, sample: FleetSample) -> Wanted:
        """Return the replicas wanted now. Samples come in the order of their time."""
        ...

    def restarted(self) -> Policy:
        """Return the policy after its process was restarted: it keeps what its project stores outside memory."""
        ...
