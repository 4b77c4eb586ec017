"""The real scheduler and block pool over a simulated clock: what the simulated engine is held against."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.step import RowResult, StepResult
from octavo_engine.core.stop import StopRule
from octavo_operator.simulate.calibrate import Calibration


class Asked(NamedTuple):
    """A request: when, its prompt's tokens, and how many it writes."""

    at: float
    prompt: tuple[int, ...]
    output: int


class Times(NamedTuple):
    """When a request's first and last token came."""

    first: float
    last: float


class Run(NamedTuple):
    """What came out: times by request, and the scheduler's counters."""

    times: dict[int, Times]
    preemptions: int
    hit_tokens: int


def run(calibration: Calibration, asked: Sequence[Asked]) -> Run:
    """Serve the requests, one plan in flight; a step takes what the calibration says."""
    scheduler = create_scheduler(
        SchedulerConfig(
            groups=(CacheGroup(calibration.blocks),),
            max_model_len=calibration.blocks * calibration.block_size,
            block_size=calibration.block_size,
            max_num_seqs=calibration.max_num_seqs,
            max_num_batched_tokens=calibration.max_num_batched_tokens,
            watermark=calibration.watermark,
            max_plans_in_flight=1,
        )
    )
    coming = [(request.at, number, request) for number, request in enumerate(asked)]
    heapq.heapify(coming)
    now, token = 0.0, 1_000_000
    first: dict[int, float] = {}
    times: dict[int, Times] = {}
    while True:
        while coming and coming[0][0] <= now + 1e-9:
            at, number, request = heapq.heappop(coming)
            assert scheduler.submit(Request((number,), request.prompt, StopRule(request.output), arrival=at)) is None
        plan = scheduler.schedule()
        if plan is None:
            if not coming:
                break
            now = coming[0][0]
            continue
        context = sum(row.start for row in plan.rows if row.start and row.num_tokens == 1 and row.samples)
        now += calibration.step_seconds + plan.num_tokens / calibration.prefill_tokens_per_second
        now += context * calibration.context_token_seconds
        results = []
        for row in plan.rows:
            token += 1
            results.append(RowResult((token,) if row.samples else ()))
        for event in scheduler.commit(plan, StepResult(plan.number, tuple(results))):
            if event.tokens:
                first.setdefault(event.sequence, now)
            if event.finish:
                times[event.sequence] = Times(first[event.sequence], now)
    scheduler.assert_idle()
    snapshot = scheduler.snapshot(now)
    return Run(times, snapshot.preemptions, snapshot.prefix_hit_tokens)
