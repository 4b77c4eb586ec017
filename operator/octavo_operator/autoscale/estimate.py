"""From pods and samples to demand and supply in KV blocks. Pure.

demand  =  blocks held by running sequences
         + blocks that queued prompts need
         + blocks that held prompts need              (serving pods only: a cordoned pod finishes its own work)
growth  =  max(0, slope over 30 s) x cold start       (what arrives before a pod asked for now can help)
supply  =  ready pods + starting pods, whose credit ages away; unschedulable ones are worth nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final

from .learn import blocks_per_pod
from .policy import Policy
from .types import Estimate, Held, Learned, Pod, PodSample, PodState

SLOPE_WINDOW_SECONDS: Final = 30.0
SLOPE_DEAD_BAND_PERCENT: Final = 10
"""A rise of less than this over the window is noise: HPA's tolerance."""
CREDIT_MIN_SECONDS: Final = 30.0
"""A few quick starts (image and weights on the node) must not write the next slower one off at once."""


def estimate(
    policy: Policy,
    pods: Sequence[Pod],
    samples: Mapping[str, PodSample],
    held: Held,
    learned: Learned,
    points: Sequence[Estimate],
    now: float,
) -> Estimate:
    """Return demand and supply at `now`. `samples`: the last valid sample of each pod; `points`: earlier estimates."""
    present = [pod for pod in pods if pod.present]
    serving = [pod for pod in present if pod.serving]
    reports = [samples[pod.uid] for pod in serving if pod.uid in samples]
    complete = [sample for sample in reports if sample.complete]
    queues = [sample.queue for sample in reports if sample.queue is not None]
    others = [
        sample.queue
        for pod in present
        if not pod.serving and (sample := samples.get(pod.uid)) is not None and sample.queue is not None
    ]
    load = held.blocks + sum(_blocks(samples[pod.uid], policy) for pod in present if pod.uid in samples)
    demand = held.blocks + _extrapolated(
        sum(_blocks(sample, policy) for sample in complete), len(serving), len(complete)
    )
    starting = [pod for pod in present if pod.state is PodState.STARTING and not pod.cordoned]
    unschedulable = [pod for pod in present if pod.state is PodState.UNSCHEDULABLE and not pod.cordoned]
    unplaced = [pod for pod in unschedulable if not _passed_over(pod, present)]
    current = Estimate(
        at=now,
        demand_blocks=demand,
        load_blocks=load,
        held_requests=held.requests,
        queued_requests=sum(queue.waiting for queue in queues),
        oldest_queue_millis=max((queue.oldest_millis for queue in queues if queue.waiting), default=0),
        running_requests=sum(queue.running for queue in queues),
        other_requests=sum(queue.running + queue.waiting for queue in others),
        blocks_per_pod=blocks_per_pod(learned),
        ready_pods=len(serving),
        starting_pods=len(starting),
        starting_credit=sum(starting_credit(pod, policy, learned, now) for pod in starting),
        unschedulable_pods=len(unschedulable),
        passed_over_pods=len(unschedulable) - len(unplaced),
        unplaced_seconds=min((now - pod.created_at for pod in unplaced), default=0.0),
        cordoned_pods=sum(pod.cordoned for pod in present),
        reporting_pods=len(complete),
        queue_pods=len(queues),
    )
    return _with_growth(current, points, learned)


def queued_blocks(requests: int, tokens: int, block_size: int) -> int:
    """Return the most blocks that `requests` prompts of `tokens` tokens together need: each may end in a part block."""
    return (tokens + (block_size - 1) * requests) // block_size


def _passed_over(pod: Pod, present: Sequence[Pod]) -> bool:
    """Return whether a younger pod found a node: then the cluster has room, though none for this one."""
    return any(other.scheduled and other.created_at > pod.created_at for other in present)


def starting_credit(pod: Pod, policy: Policy, learned: Learned, now: float) -> float:
    """Return a starting pod's worth as supply: 1 up to the 90th percentile of cold starts, then down to 0 at twice it.

    Without any observed start the percentile is half the startup time-out: the credit ends when the kubelet gives up.
    """
    usual = learned.cold_start_p90
    usual = policy.startup_timeout_seconds / 2 if usual is None else max(usual, CREDIT_MIN_SECONDS)
    age = now - (pod.created_at if pod.not_ready_since is None else pod.not_ready_since)
    return min(1.0, max(0.0, 2.0 - age / usual))


def growth(points: Sequence[Estimate], cold_start_seconds: float, demand: int) -> int:
    """Return the blocks that will arrive during a cold start; `points` are complete, oldest first, the last one is now.

    The slope is the median of the steps between samples: one jump is no trend. At most `demand` again.
    """
    if len(points) < 3:
        return 0
    slope = median(
        (later.load_blocks - former.load_blocks) / (later.at - former.at) for former, later in pairwise(points)
    )
    if slope * SLOPE_WINDOW_SECONDS * 100 < SLOPE_DEAD_BAND_PERCENT * points[-1].load_blocks:
        return 0
    return max(0, min(demand, round(slope * cold_start_seconds)))


def _with_growth(current: Estimate, points: Sequence[Estimate], learned: Learned) -> Estimate:
    if learned.cold_start_p50 is None or not current.complete:
        return current
    window = [point for point in points if point.complete and 0 < current.at - point.at <= SLOPE_WINDOW_SECONDS]
    return replace(current, growth_blocks=growth([*window, current], learned.cold_start_p50, current.demand_blocks))


def _blocks(sample: PodSample, policy: Policy) -> int:
    """Return the blocks a pod's requests hold and will need; of a half-valid sample, what it says."""
    active = sample.kv.active if sample.kv is not None else 0
    queue = sample.queue
    return active + (queued_blocks(queue.waiting, queue.tokens, policy.block_size) if queue is not None else 0)


def _extrapolated(blocks: int, pods: int, reporting: int) -> int:
    """Return the fleet's blocks if the silent pods are like the others. Shrinking never relies on it."""
    return blocks if reporting in (0, pods) else -(-blocks * pods // reporting)
