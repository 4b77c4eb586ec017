"""Pods, samples and a small fleet for the autoscaler's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from octavo_operator.autoscale import (
    Decision,
    Estimate,
    Held,
    History,
    KVBlocks,
    Pod,
    PodSample,
    PodState,
    Policy,
    Queue,
    Scrape,
    ScrapeFailure,
    ServiceState,
)

T0 = 1_800_000_000.0
BLOCKS = 1000
POLICY = Policy(min_replicas=0, max_replicas=8)


def pod(name: str, state: PodState = PodState.READY, **fields: object) -> Pod:
    """A pod that was created a day ago, unless told otherwise."""
    given = {"created_at": T0 - 86_400, "ip": "127.0.0.1", **fields}
    return Pod(uid=f"uid-{name}", name=name, state=state, **given)  # type: ignore[arg-type]


def sample(
    of: Pod | str,
    active: int | None = 0,
    *,
    cached: int = 0,
    running: int = 0,
    waiting: int | None = 0,
    tokens: int = 0,
    oldest_millis: int = 0,
    at: float = T0,
) -> PodSample:
    """A sample of a pool of 1,000 blocks; `active=None` or `waiting=None` leaves that signal out."""
    uid = of if isinstance(of, str) else of.uid
    kv = None if active is None else KVBlocks(active, cached, BLOCKS - active - cached)
    queue = None if waiting is None else Queue(running, waiting, tokens, oldest_millis)
    return PodSample(uid, at, kv, queue)


def moment(at: float = T0, **fields: object) -> Estimate:
    """An estimate of `ready` pods that all report; `load_blocks` follows `demand_blocks`."""
    ready = fields.get("ready_pods", 1)
    given = {
        "ready_pods": ready,
        "reporting_pods": ready,
        "queue_pods": ready,
        "blocks_per_pod": BLOCKS,
        "load_blocks": fields.get("demand_blocks", 0),
        **fields,
    }
    return Estimate(at=at, **given)  # type: ignore[arg-type]


def past(point: Estimate, seconds: int = 3600, *, desired: int | None = None) -> History:
    """A history in which every moment of the last `seconds` looked like `point`."""
    points = tuple(replace(point, at=point.at - ago) for ago in range(seconds, 0, -10))
    return History(point.at - seconds, point.ready_pods if desired is None else desired, points)


class Fleet:
    """Runs a `ServiceState` period by period over ready pods; what was decided is there at the next period."""

    def __init__(self, replicas: int, policy: Policy = POLICY, *, scaling: Mapping[str, object] | None = None) -> None:
        self.now = T0
        self.policy = policy
        self.state = ServiceState(desired=replicas, now=self.now, scaling=scaling)
        self.decisions: list[Decision] = []

    def pods(self) -> list[Pod]:
        return [pod(str(number)) for number in range(self.state.desired)]

    def period(self, load: Callable[[Pod, int], PodSample | str], held: Held = Held()) -> Decision:
        """One period: `load(pod, replicas)` is a pod's sample, or why there is none."""
        pods = self.pods()
        scrapes: dict[str, Scrape] = {}
        for one in pods:
            result = load(one, len(pods))
            if isinstance(result, str):
                scrapes[one.uid] = ScrapeFailure(one.uid, self.now, result)
            else:
                scrapes[one.uid] = result._replace(at=self.now)
        decision = self.state.advance(self.policy, pods, scrapes, held, self.now)
        self.decisions.append(decision)
        self.now += 10
        return decision

    def run(self, seconds: int, load: Callable[[Pod, int], PodSample | str], held: Held = Held()) -> list[Decision]:
        """Run for `seconds`; return the decisions that changed something."""
        decisions = [self.period(load, held) for _ in range(seconds // 10)]
        return [decision for decision in decisions if decision.direction != "Hold"]


def spread(blocks: float, *, running: int = 1, **fields: int) -> Callable[[Pod, int], PodSample]:
    """A load of `blocks` in all, spread evenly."""
    return lambda of, replicas: sample(of, min(BLOCKS, round(blocks / replicas)), running=running, **fields)
