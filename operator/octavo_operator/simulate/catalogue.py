"""The policies that can be simulated, by name: each at its project's defaults, and swept over its one main target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from octavo_operator.autoscale.policy import Policy as Scaling
from octavo_operator.autoscale.policy import ScaleDown

from .baselines.aibrix import Apa
from .baselines.bounds import Arrival, FixedN, LoadCurve, Oracle, PodCapacity
from .baselines.dynamo import Dynamo, PlannerConfig
from .baselines.hpa import HpaKv, HpaQueue
from .baselines.keda import KedaSlo, SloConfig
from .baselines.knative import Kpa, KpaConfig
from .baselines.kubeai import KubeAi
from .baselines.ours import Octavo
from .baselines.wva import SaturationConfig, WvaV1
from .baselines.wva2 import TokenConfig, WvaV2
from .calibrate import Calibration
from .policy import Bounds, Policy
from .result import Objective
from .trace import Trace

OURS: Final = "octavo"
ORACLE: Final = "oracle"
FIXED: Final = "fixed"


class Setting(NamedTuple):
    """What a policy is made for. `cold_start` in seconds: only the oracle is told. `bounds`: of every policy."""

    trace: Trace
    calibration: Calibration
    objective: Objective
    cold_start: float
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy. `swept` says what `default` and `values` are; `reactive`: it knows no more than it can measure."""

    swept: str
    default: float
    values: tuple[float, ...]
    make: Callable[[float, Setting], Policy]
    reactive: bool = True

    def sweep(self) -> tuple[float, ...]:
        """Return the values to sweep, the default among them, ascending."""
        return tuple(sorted({self.default, *self.values}))


def octavo_policy(target: float, setting: Setting) -> Policy:
    """Return ours; below the default's distance to the lower threshold both move in proportion."""
    default = Scaling()
    percent = round(target)
    lower = min(percent - 1, percent * default.scale_down.utilization_percent // default.target_utilization_percent)
    scaling = replace(
        default,
        min_replicas=setting.bounds.low,
        max_replicas=setting.bounds.high,
        target_utilization_percent=percent,
        scale_down=replace(ScaleDown(), utilization_percent=lower),
        block_size=setting.calibration.block_size,
    )
    return Octavo(scaling)


def capacity(calibration: Calibration) -> PodCapacity:
    """Return what one pod does in the units of the load curve: a decode step with the prompts that come between."""
    return PodCapacity(
        blocks=calibration.blocks,
        block_size=calibration.block_size,
        max_sequences=calibration.max_num_seqs,
        prefill_tokens_per_second=calibration.prefill_tokens_per_second,
        token_seconds=1.2 * calibration.step_seconds,
    )


def load_curve(trace: Trace, calibration: Calibration) -> LoadCurve:
    """Return how many pods' worth of work the trace is at each moment, if nobody waits."""
    arrivals = (Arrival(request.at, request.prompt, request.output) for request in trace.requests)
    return LoadCurve.of(arrivals, capacity(calibration))


_ORACLE_SMOOTHING: Final = (0.0, 30.0, 120.0)


def _oracle(value: float, setting: Setting) -> Policy:
    """`value`: the utilisation in percent, and the smoothing as a whole number of thousands."""
    smoothing, percent = divmod(value, 1000)
    curve = load_curve(setting.trace, setting.calibration)
    # Starts vary by about a sixth: the slow tenth is reckoned with.
    lead = setting.cold_start * 1.2
    return Oracle(
        curve, lead, setting.bounds, utilization=percent / 100, smooth_seconds=_ORACLE_SMOOTHING[int(smoothing)]
    )


ENTRIES: Final[dict[str, Entry]] = {
    OURS: Entry("target KV utilisation, %", 80, (45, 55, 65, 72, 88, 94, 100), octavo_policy),
    "knative-kpa": Entry(
        "concurrency a pod",
        100,
        (2, 3, 4, 6, 8, 10, 13, 17, 22, 30),
        lambda value, setting: Kpa(KpaConfig(target=value), setting.bounds),
    ),
    "hpa-kv": Entry(
        "KV utilisation",
        0.80,
        (0.25, 0.35, 0.45, 0.55, 0.65, 0.9, 0.97),
        lambda value, setting: HpaKv(target=value, bounds=setting.bounds),
    ),
    "hpa-queue": Entry(
        "waiting requests a pod",
        5,
        (0.05, 0.1, 0.25, 0.5, 1, 2, 10),
        lambda value, setting: HpaQueue(target=value, bounds=setting.bounds),
    ),
    "kubeai": Entry(
        "active requests a pod",
        100,
        (2, 3, 4, 6, 8, 10, 13, 17, 22),
        lambda value, setting: KubeAi(value, setting.bounds),
    ),
    "aibrix-apa": Entry(
        "KV utilisation",
        0.5,
        (0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9),
        lambda value, setting: Apa(value, setting.bounds),
    ),
    "aibrix-apa-documented": Entry(
        "KV utilisation",
        0.5,
        (0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9),
        lambda value, setting: Apa(value, setting.bounds, as_documented=True),
    ),
    "wva-v1": Entry(
        "KV utilisation that is saturated",
        0.80,
        (0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.97),
        lambda value, setting: WvaV1(SaturationConfig(kv=value), setting.bounds),
    ),
    "wva-v2": Entry(
        "share of capacity to grow at",
        0.85,
        (0.4, 0.5, 0.6, 0.7, 0.78, 0.92, 0.98),
        lambda value, setting: WvaV2(_tokens(value, setting), setting.bounds),
    ),
    "dynamo": Entry(
        "KV load to grow at",
        1.0,
        (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        lambda value, setting: Dynamo(_planner(value, setting), setting.bounds),
    ),
    "keda-slo": Entry(
        "saturation to grow at",
        0.55,
        (0.1, 0.2, 0.3, 0.4, 0.7, 0.85, 1.0),
        lambda value, setting: KedaSlo(SloConfig(ttft_seconds=setting.objective.ttft).at(value), setting.bounds),
    ),
    FIXED: Entry(
        "pods", 4, (1, 2, 3, 5, 6, 7, 8, 10, 12, 16), lambda value, setting: FixedN(round(value)), reactive=False
    ),
    ORACLE: Entry(
        "utilisation, % (+1000 a smoothing)",
        80,
        tuple(1000 * s + u for s in range(len(_ORACLE_SMOOTHING)) for u in (50, 65, 80, 100, 120, 150)),
        _oracle,
        reactive=False,
    ),
}


def _tokens(up: float, setting: Setting) -> TokenConfig:
    default, pod = TokenConfig(), setting.calibration
    return replace(
        default,
        up=up,
        down=default.down * up / default.up,
        max_batched_tokens=pod.max_num_batched_tokens,
        max_sequences=pod.max_num_seqs,
        block_size=pod.block_size,
    )


def _planner(up: float, setting: Setting) -> PlannerConfig:
    default = PlannerConfig()
    return replace(default, up=up, down=default.down * up / default.up, block_size=setting.calibration.block_size)


def reactive() -> list[str]:
    """Return the names of the baselines that react: all but ours and the bounds."""
    return [name for name, entry in ENTRIES.items() if entry.reactive and name != OURS]
