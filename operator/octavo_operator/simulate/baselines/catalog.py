"""Every policy with its default and what its one parameter is swept over, for whoever compares them.

A sweep holds the default and goes far enough to both sides that its ends are clearly too dear and clearly too slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from octavo_operator.autoscale.policy import Policy as AutoscalePolicy
from octavo_operator.simulate.baselines.aibrix import Apa
from octavo_operator.simulate.baselines.bounds import Arrival, FixedN, LoadCurve, Oracle, PodCapacity
from octavo_operator.simulate.baselines.dynamo import Dynamo, PlannerConfig
from octavo_operator.simulate.baselines.hpa import HpaKv, HpaQueue
from octavo_operator.simulate.baselines.keda import KedaSlo, SloConfig
from octavo_operator.simulate.baselines.knative import Kpa, KpaConfig
from octavo_operator.simulate.baselines.kubeai import KubeAi
from octavo_operator.simulate.baselines.ours import Octavo
from octavo_operator.simulate.baselines.wva import SaturationConfig, WvaV1
from octavo_operator.simulate.baselines.wva2 import TokenConfig, WvaV2
from octavo_operator.simulate.calibrate import Calibration
from octavo_operator.simulate.policy import Bounds, Policy
from octavo_operator.simulate.trace import Trace

REQUESTS: Final = (2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)
SHARES: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PERCENTAGES: Final = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 120.0, 150.0, 200.0)
"""The resource allows up to 100. Above it demand that queues is left to queue: for the slow end of the curve only."""
LATENCIES: Final = (0.05, 0.10, 0.15, 0.20, 0.30, 0.40, 0.55, 0.75, 1.0)
ORACLE_UTILIZATION: Final = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
DOWN_OF_UP: Final = 0.75
"""Octavo's 60 % of 80 %: swept together, as WVA's and Dynamo's lower threshold is with their upper one."""


@dataclass(frozen=True, slots=True)
class Family:
    """One policy: its name, its project's default of the parameter that is swept, the sweep, and how to make it."""

    name: str
    default: float
    sweep: tuple[float, ...]
    make: Callable[[float], Policy]

    def at_default(self) -> Policy:
        """Return a new one as its project ships it."""
        return self.make(self.default)


@dataclass(frozen=True, slots=True)
class Service:
    """What is the same for all: the pods, the bounds, and the objective in seconds (what SLO-driven ones are told)."""

    calibration: Calibration
    bounds: Bounds
    ttft_seconds: float
    itl_seconds: float


def octavo(service: Service, policy: AutoscalePolicy | None = None) -> Family:
    """Return ours; `policy` has everything but bounds, block size and the swept target."""
    base = replace(
        policy or AutoscalePolicy(),
        min_replicas=service.bounds.low,
        max_replicas=service.bounds.high,
        block_size=service.calibration.block_size,
    )

    def make(percent: float) -> Policy:
        down = base.scale_down.utilization_percent
        if percent != base.target_utilization_percent:
            down = round(percent * DOWN_OF_UP)
        return Octavo(
            replace(
                base,
                target_utilization_percent=round(percent),
                scale_down=replace(base.scale_down, utilization_percent=down),
            )
        )

    default = float(base.target_utilization_percent)
    return Family("octavo", default, _with(default, PERCENTAGES), make)


def baselines(service: Service) -> tuple[Family, ...]:
    """Return the rivals, each at its project's defaults but for the parameter."""
    bounds, calibration = service.bounds, service.calibration
    tokens = TokenConfig(
        max_batched_tokens=calibration.max_num_batched_tokens,
        max_sequences=calibration.max_num_seqs,
        block_size=calibration.block_size,
    )
    slo = SloConfig(ttft_seconds=service.ttft_seconds, itl_seconds=service.itl_seconds)
    planner = PlannerConfig(block_size=calibration.block_size)
    return (
        Family("knative-kpa", 100.0, REQUESTS, lambda x: Kpa(KpaConfig(target=x), bounds)),
        Family("hpa-kv", 0.8, SHARES, lambda x: HpaKv(target=x, bounds=bounds)),
        Family("hpa-queue", 5.0, (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0), lambda x: HpaQueue(target=x, bounds=bounds)),
        Family("kubeai", 100.0, REQUESTS, lambda x: KubeAi(x, bounds)),
        Family("aibrix-apa", 0.5, SHARES, lambda x: Apa(x, bounds)),
        Family("wva-v1", 0.8, (*SHARES[1:], 0.95), lambda x: WvaV1(_saturation(x), bounds)),
        Family("wva-v2", 0.85, _with(0.85, SHARES), lambda x: WvaV2(_in_proportion(tokens, x), bounds)),
        Family(
            "dynamo",
            1.0,
            (0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0, 1.2),
            lambda x: Dynamo(replace(planner, up=x, down=planner.down * x / planner.up), bounds),
        ),
        Family("keda-slo", 0.55, LATENCIES, lambda x: KedaSlo(slo.at(x), bounds)),
    )


def variants(service: Service) -> tuple[Family, ...]:
    """Return other readings and modes of the same projects: printed beside them, not counted as rivals."""
    bounds = service.bounds
    planner = PlannerConfig(
        "sla",
        ttft_seconds=service.ttft_seconds,
        itl_seconds=service.itl_seconds,
        block_size=service.calibration.block_size,
    )
    latency = replace(PlannerConfig.latency(), block_size=service.calibration.block_size)
    return (
        Family("aibrix-apa-documented", 0.5, SHARES, lambda x: Apa(x, bounds, as_documented=True)),
        Family(
            "dynamo-latency", 0.4, SHARES, lambda x: Dynamo(replace(latency, up=x, down=latency.down * x / 0.4), bounds)
        ),
        Family(
            "dynamo-sla",
            service.ttft_seconds,
            tuple(service.ttft_seconds * share for share in (0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)),
            lambda x: Dynamo(replace(planner, ttft_seconds=x), bounds),
        ),
    )


def fixed(service: Service) -> Family:
    """Return the fixed counts within the bounds."""
    counts = range(max(1, service.bounds.low), service.bounds.high + 1)
    return Family("fixed", float(counts[-1]), tuple(map(float, counts)), lambda x: FixedN(round(x)))


def oracle(service: Service, trace: Trace, cold_start_seconds: float, smooth_seconds: float = 0.0) -> Family:
    """Return the schedules of who knows `trace`, and the cold start to reckon with (where it varies, a high one)."""
    calibration = service.calibration
    capacity = PodCapacity(
        blocks=calibration.blocks,
        block_size=calibration.block_size,
        max_sequences=calibration.max_num_seqs,
        prefill_tokens_per_second=calibration.prefill_tokens_per_second,
        token_seconds=calibration.step_seconds,
    )
    arrivals = [Arrival(request.at, request.prompt, request.output) for request in trace.requests]
    load = LoadCurve.of(arrivals, capacity).smoothed(smooth_seconds)

    def make(utilization: float) -> Policy:
        return Oracle(load, cold_start_seconds, service.bounds, utilization=utilization)

    return Family("oracle", 0.8, ORACLE_UTILIZATION, make)


def _with(default: float, sweep: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted({default, *sweep}))


def _saturation(kv: float) -> SaturationConfig:
    return SaturationConfig(kv=kv)


def _in_proportion(config: TokenConfig, up: float) -> TokenConfig:
    return replace(config, up=up, down=config.down * up / config.up)
