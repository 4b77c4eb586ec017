"""llm-d's Workload Variant Autoscaler with its token-based analyzer (V2), one variant.

Source: operators.md §2.7; llm-d-workload-variant-autoscaler `internal/engines/analyzers/saturation_v2` and `pipeline`
(the cost-aware optimizer). Same loop and HPA as V1. Chosen where §2.7 is silent: usage and queue are the peaks of the
last minute, as V1's queries; average lengths are increases over five minutes; the classes of output length that share
learned capacity end at 100 and 500 tokens; the median of the replicas' capacities counts for each; the gateway's held
prompts are counted as they are (their tokens are known, a hit rate is not), with the average output.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from octavo_engine import contract
from octavo_operator.simulate.baselines.wva import PEAK_SECONDS, Wva
from octavo_operator.simulate.policy import Bounds, FleetSample

LENGTHS_SECONDS: Final = 300.0
ROLLING: Final = 10


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Thresholds with their defaults, and the engine's flags that capacity in tokens is derived from."""

    kv: float = 0.80
    queue: float = 5.0
    up: float = 0.85
    down: float = 0.70
    max_batched_tokens: int = 2048
    max_sequences: int = 256
    block_size: int = contract.BLOCK_SIZE


class Lengths(NamedTuple):
    """Average prompt and output of a request in tokens; 0 while unknown."""

    prompt: float = 0.0
    output: float = 0.0


class Replica(NamedTuple):
    """One replica: tokens in use, tokens its cache holds, and requests that wait."""

    used: float
    total: float
    queue: float


def derived_capacity(config: TokenConfig, lengths: Lengths) -> float:
    """Return `N * (I + O/2)` with `N = min(B*O/(I+O), S)`: tokens that compute keeps up with; 0 if unknown."""
    prompt, output = lengths
    if output <= 0:
        return 0.0
    sequences = min(config.max_batched_tokens * output / (prompt + output), config.max_sequences)
    return sequences * (prompt + output / 2)


@dataclass(slots=True)
class Capacity:
    """What was learned of compute: of each class of output length the usage seen at saturation, the last ten."""

    seen: dict[str, deque[float]] = field(default_factory=dict)

    def of(self, config: TokenConfig, replica: Replica, lengths: Lengths) -> float:
        """Return min(k1, k2) of one replica in tokens, and learn k2 if the replica is saturated."""
        memory = replica.total * config.kv
        history = self.seen.setdefault(_output_class(lengths.output), deque(maxlen=ROLLING))
        if replica.queue >= config.queue and replica.used > 0:
            history.append(replica.used)
            return min(memory, replica.used)
        compute = sum(history) / len(history) if history else derived_capacity(config, lengths)
        return min(memory, compute) if compute > 0 else memory


def change(config: TokenConfig, demand: float, per_replica: float, ready: int, pending: int) -> int:
    """Return the replicas to add (positive) or to take away (negative); `demand` and `per_replica` in tokens."""
    if per_replica <= 0:
        return 0
    required = demand / config.up - (ready + pending) * per_replica
    if required > 0:
        return math.ceil(required / per_replica)
    removable = ready * per_replica - demand / config.down
    return -math.floor(removable / per_replica) if removable > 0 else 0


def _output_class(tokens: float) -> str:
    return "short" if tokens < 100 else "medium" if tokens < 500 else "long"


class WvaV2(Wva):
    """V2; the parameter to sweep is `config.up`, with `config.down` in proportion."""

    def __init__(
        self,
        config: TokenConfig | None = None,
        bounds: Bounds | None = None,
        *,
        stored: int | None = None,
    ) -> None:
        self.config = config or TokenConfig()
        self._capacity = Capacity()
        self._per_replica = 0.0
        super().__init__(f"wva-v2({self.config.up:g})", bounds, stored)

    def analyzed(self, sample: FleetSample) -> tuple[int, str]:
        """Return the replicas that demand in tokens needs."""
        lengths = self._lengths(sample.at)
        replicas = [self._replica(uid, sample.at) for uid in self.scrapes.seen(sample.at, PEAK_SECONDS)]
        if not replicas and (sample.ready or not self._per_replica):
            return sample.replicas if self.emitted is None else self.emitted, "NoMetrics"
        if replicas:
            self._per_replica = median(self._capacity.of(self.config, replica, lengths) for replica in replicas)
        demand = sum(replica.used + replica.queue * lengths.prompt for replica in replicas)
        demand += sample.gateway.held_tokens + sample.gateway.held_requests * lengths.output
        pending = len(sample.starting)
        by = change(self.config, demand, self._per_replica, max(0, sample.replicas - pending), pending)
        return max(1, sample.replicas + by), "Required" if by > 0 else "Removable" if by < 0 else "Met"

    def restarted(self) -> WvaV2:
        """Return it with the number that its status keeps; what it learned is lost."""
        return WvaV2(self.config, self.bounds, stored=self.emitted)

    def _lengths(self, now: float) -> Lengths:
        requests = self.scrapes.increase(now, LENGTHS_SECONDS, lambda metrics: metrics.requests_total)
        if requests == 0:
            return Lengths()
        prompts = self.scrapes.increase(now, LENGTHS_SECONDS, lambda metrics: metrics.prompt_tokens_total)
        outputs = self.scrapes.increase(now, LENGTHS_SECONDS, lambda metrics: metrics.generated_tokens_total)
        return Lengths(prompts / requests, outputs / requests)

    def _replica(self, uid: str, now: float) -> Replica:
        block = self.config.block_size
        used = self.scrapes.peak(uid, now, PEAK_SECONDS, lambda metrics: metrics.kv.active * block)
        total = self.scrapes.peak(uid, now, PEAK_SECONDS, lambda metrics: metrics.kv.total * block)
        queue = self.scrapes.peak(uid, now, PEAK_SECONDS, lambda metrics: metrics.waiting)
        return Replica(used or 0.0, total or 0.0, queue or 0.0)
