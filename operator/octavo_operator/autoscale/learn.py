"""What one pod is worth, and how long one takes to start: measured, never configured. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Final

from .policy import Policy
from .types import KVBlocks, Learned, Pod, PodSample, Saturation, Scrape

COLD_STARTS_KEPT: Final = 20
SATURATIONS_KEPT: Final = 10
SATURATION_MAX_AGE_SECONDS: Final = 600
"""Evidence about compute belongs to the traffic it was seen under: ten minutes later that may be another."""
COMPUTE_FLOOR_PERCENT: Final = 10
"""Compute capacity is never believed to be below this share of the pool: a stall must not call for a fleet."""


def learn(
    learned: Learned,
    policy: Policy,
    pods: Sequence[Pod],
    samples: Mapping[str, PodSample],
    recent: Sequence[Mapping[str, Scrape]],
    starting: Collection[str],
    now: float,
) -> Learned:
    """Return `learned` with one period's evidence added.

    `samples`: the pods' valid samples; `recent`: the scrapes of the two periods before, oldest first; `starting`: the
    pods that this process saw before they were Ready for the first time.
    """
    serving = [pod for pod in pods if pod.serving]
    totals = [kv.total for pod in serving if (sample := samples.get(pod.uid)) and (kv := sample.kv)]
    return _with_cold_starts(
        replace(
            learned,
            total_blocks=sum(totals) // len(totals) if totals else learned.total_blocks,
            saturations=_saturations(learned.saturations, policy, serving, samples, recent, now),
        ),
        [
            pod.ready_at - pod.created_at
            for pod in pods
            if pod.uid in starting
            and pod.ready_at is not None
            and 0 < pod.ready_at - pod.created_at <= policy.startup_timeout_seconds
        ],
    )


def blocks_per_pod(learned: Learned) -> int:
    """Return the effective capacity of a pod in blocks: the smaller of its pool and of what its compute keeps up with.

    Short contexts fill compute long before they fill the cache; the blocks held at that moment are the real capacity.
    """
    if not learned.saturations:
        return learned.total_blocks
    compute = median_low(saturation.blocks for saturation in learned.saturations)
    floor = learned.total_blocks * COMPUTE_FLOOR_PERCENT // 100
    return min(learned.total_blocks, max(compute, floor, 1))


def _saturations(
    known: tuple[Saturation, ...],
    policy: Policy,
    serving: Sequence[Pod],
    samples: Mapping[str, PodSample],
    recent: Sequence[Mapping[str, Scrape]],
    now: float,
) -> tuple[Saturation, ...]:
    seen = [saturation for saturation in known if now - saturation.at <= SATURATION_MAX_AGE_SECONDS]
    for pod in serving:
        sample = samples.get(pod.uid)
        if sample is None or sample.kv is None or sample.queue is None:
            continue
        if sample.queue.waiting == 0:
            # It holds more than compute was believed to keep up with, and nobody waits: the evidence is refuted.
            seen = [saturation for saturation in seen if saturation.blocks >= sample.kv.active]
            continue
        run = [sample, *(scrapes.get(pod.uid) for scrapes in recent)]
        held = [_saturated_with(scrape, policy) for scrape in run]
        if len(run) == 3 and all(held):
            seen.append(Saturation(sample.at, max(blocks for blocks in held if blocks is not None)))
    return tuple(seen[-SATURATIONS_KEPT:])


def _saturated_with(scrape: Scrape | None, policy: Policy) -> int | None:
    """Return the blocks held by a pod whose requests waited although blocks were free, or None for any other."""
    if not isinstance(scrape, PodSample) or scrape.kv is None or scrape.queue is None:
        return None
    waits = scrape.queue.running > 0 and scrape.queue.waiting > policy.target_queue_depth
    return scrape.kv.active if waits and _has_room(scrape.kv, policy) else None


def _has_room(kv: KVBlocks, policy: Policy) -> bool:
    return kv.active * 100 < policy.target_utilization_percent * kv.total


def _with_cold_starts(learned: Learned, seconds: Sequence[float]) -> Learned:
    if not seconds:
        return learned
    kept = (*learned.cold_starts, *seconds)[-COLD_STARTS_KEPT:]
    return replace(
        learned,
        cold_starts=kept,
        cold_start_p50=percentile(kept, 50),
        cold_start_p90=percentile(kept, 90),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile of at least one value."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
