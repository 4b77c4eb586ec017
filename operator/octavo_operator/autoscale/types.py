"""What flows from collect to actuate: pods, samples, estimates, decisions. Frozen, no behaviour beyond sums.

Times are seconds of one clock that the caller passes in (`SteadyClock`): Unix time at the operator's start, advanced by
the monotonic clock, so that a stepped system clock moves no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple


class PodState(StrEnum):
    """What a pod is worth to its service. Cordoned is a mark beside it, not a state."""

    READY = "Ready"
    STARTING = "Starting"  # on a node, or just created and not yet judged by the scheduler
    UNSCHEDULABLE = "Unschedulable"
    TERMINATING = "Terminating"
    ENDED = "Ended"  # Failed or Succeeded: evicted, or out of its node's memory


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a service as the API server shows it. Times in Unix seconds.

    `not_ready_since` is when Ready last turned False (creation, for one that never was ready). `ready_at` is when it
    last turned True. `cordoned_at` is None on an unmarked pod, and on a marked one whose mark carries no legible time.
    """

    uid: str
    name: str
    state: PodState
    created_at: float
    ip: str | None = None
    scheduled: bool = True
    ready_at: float | None = None
    not_ready_since: float | None = None
    cordoned: bool = False
    cordoned_at: float | None = None

    @property
    def serving(self) -> bool:
        """Ready and unmarked: counts as capacity, and its work as demand."""
        return self.state is PodState.READY and not self.cordoned

    @property
    def present(self) -> bool:
        """Counts against the Deployment's replicas: neither terminating nor ended."""
        return self.state not in (PodState.TERMINATING, PodState.ENDED)


class KVBlocks(NamedTuple):
    """A pod's KV blocks by state. Cached blocks are evictable: they are supply, not demand."""

    active: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        """Return the size of the pool."""
        return self.active + self.cached + self.free


class Queue(NamedTuple):
    """A pod's requests: running, waiting, prompt tokens of the waiting, and the oldest one's wait in milliseconds."""

    running: int
    waiting: int
    tokens: int
    oldest_millis: int


class PodSample(NamedTuple):
    """One scrape of one pod. A signal that was missing or not a number is None; both None is a `ScrapeFailure`."""

    uid: str
    at: float
    kv: KVBlocks | None
    queue: Queue | None

    @property
    def complete(self) -> bool:
        """Both signals are valid."""
        return self.kv is not None and self.queue is not None


class ScrapeFailure(NamedTuple):
    """Why a pod gave no usable sample: a sentence for the console and the log."""

    uid: str
    at: float
    cause: str


Scrape = PodSample | ScrapeFailure


class Held(NamedTuple):
    """What the gateways hold for a service: requests, and the KV blocks that their prompts will need."""

    requests: int = 0
    blocks: int = 0


class Saturation(NamedTuple):
    """A pod let requests wait although KV blocks were free: compute was full with this many blocks held."""

    at: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Learned:
    """What was measured about one pod of the service.

    `total_blocks` is the pool's size (0: never seen), `saturations` the evidence of compute capacity, `cold_starts` the
    last observed times from creation to Ready in seconds. `cold_start_p50`/`p90` are None until one was observed or
    restored from status.
    """

    total_blocks: int = 0
    saturations: tuple[Saturation, ...] = ()
    cold_starts: tuple[float, ...] = ()
    cold_start_p50: float | None = None
    cold_start_p90: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Demand and supply of a service at one moment. Blocks and requests are whole numbers.

    `demand_blocks`: held by running sequences + needed by queued and held prompts, on serving pods; scaled up by the
    reporting share while some are silent. `load_blocks`: the same over every reporting pod, cordoned ones too, so that
    a cordon does not look like a trend. `growth_blocks`: what will arrive before a pod asked for now can help.
    `running_requests`, `queued_requests`: on serving pods; `other_requests`: running or waiting on other pods.
    `blocks_per_pod` is 0 while unknown. `reporting_pods` of the serving pods gave both signals, `queue_pods` at
    least the queue. `starting_credit`: pods' worth of the starting ones (each 1 … 0 with age). `passed_over_pods`:
    those of the unschedulable ones that stay behind although a later pod found a node. `unplaced_seconds`: how long the
    youngest of the others has looked for one.
    """

    at: float
    demand_blocks: int = 0
    load_blocks: int = 0
    growth_blocks: int = 0
    held_requests: int = 0
    queued_requests: int = 0
    oldest_queue_millis: int = 0
    running_requests: int = 0
    other_requests: int = 0
    blocks_per_pod: int = 0
    ready_pods: int = 0
    starting_pods: int = 0
    starting_credit: float = 0.0
    unschedulable_pods: int = 0
    passed_over_pods: int = 0
    unplaced_seconds: float = 0.0
    cordoned_pods: int = 0
    reporting_pods: int = 0
    queue_pods: int = 0

    @property
    def complete(self) -> bool:
        """Every serving pod reports both signals. Pods of which none serves tell nothing, which is not no demand."""
        silent = self.ready_pods == 0 and self.starting_pods + self.unschedulable_pods > 0
        return self.reporting_pods == self.ready_pods and not silent

    @property
    def metrics_available(self) -> bool:
        """At least half of the serving pods report."""
        return 2 * self.reporting_pods >= self.ready_pods

    @property
    def supply(self) -> float:
        """Return the pods that work or are trusted to work soon."""
        return self.ready_pods + self.starting_credit

    @property
    def waiting_requests(self) -> int:
        """Return the requests that wait anywhere: in a serving pod's queue or held by a gateway."""
        return self.queued_requests + self.held_requests

    @property
    def requests(self) -> int:
        """Return the requests in flight anywhere, waiting ones included."""
        return self.running_requests + self.waiting_requests + self.other_requests


Direction = Literal["Up", "Down", "Hold"]
Branch = Literal["Demand", "Latency", "Idle", "Wake", "Bounds", "MissingMetrics", "Restart"]
Limit = Literal["None", "Min", "Max", "Step", "Window", "Capacity", "PartialData", "DryRun"]


class Inputs(NamedTuple):
    """The integers a decision was made from, as they stand in its record."""

    demand_blocks: int
    growth_blocks: int
    held_requests: int
    queued_requests: int
    oldest_queue_millis: int
    blocks_per_pod: int
    ready_pods: int
    starting_pods: int
    unschedulable_pods: int
    reporting_pods: int


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision and everything needed to retrace it. `reason` is CamelCase, `message` a sentence for a person.

    With `limited_by == "DryRun"` `replicas_to` is what would have been done; `desired` is what is done.
    """

    time: float
    replicas_from: int
    replicas_to: int
    branch: Branch
    reason: str
    message: str
    limited_by: Limit
    inputs: Inputs

    @property
    def direction(self) -> Direction:
        """Return which way the record points."""
        if self.replicas_to == self.replicas_from:
            return "Hold"
        return "Up" if self.replicas_to > self.replicas_from else "Down"

    @property
    def desired(self) -> int:
        """Return the replicas that shall be: `replicas_from` in a dry run."""
        return self.replicas_from if self.limited_by == "DryRun" else self.replicas_to


@dataclass(frozen=True, slots=True)
class History:
    """What the leader remembers of one service. Points and decisions from oldest to newest.

    `started_at` is when this process began to watch: the window before it is unknown, so nothing shrinks until a full
    one was seen. `desired` is the count that holds now.
    """

    started_at: float
    desired: int
    points: tuple[Estimate, ...] = ()
    decisions: tuple[Decision, ...] = ()
