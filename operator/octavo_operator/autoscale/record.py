"""The decision record in `status.scaling`, and what is read back from it after a restart. Integers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .learn import blocks_per_pod
from .pods import format_time, parse_time
from .types import Decision, Learned

HISTORY_KEPT: Final = 5
HOLD_REWRITE_SECONDS: Final = 60
"""A hold that only changes its reason is written at most this often: noise at a threshold must not write status."""
LEARNED_CHANGE_PERCENT: Final = 10
"""A learned number is written again when it moved by more than this, or along with a decision."""


def to_record(decision: Decision) -> dict[str, Any]:
    """Return the decision as it stands in status."""
    inputs = decision.inputs
    return {
        "time": format_time(decision.time),
        "from": decision.replicas_from,
        "to": decision.replicas_to,
        "direction": decision.direction,
        "branch": decision.branch,
        "reason": decision.reason,
        "message": decision.message,
        "limitedBy": decision.limited_by,
        "inputs": {
            "demandBlocks": inputs.demand_blocks,
            "growthBlocks": inputs.growth_blocks,
            "heldRequests": inputs.held_requests,
            "queuedRequests": inputs.queued_requests,
            "oldestQueueMillis": inputs.oldest_queue_millis,
            "blocksPerPod": inputs.blocks_per_pod,
            "readyPods": inputs.ready_pods,
            "startingPods": inputs.starting_pods,
            "unschedulablePods": inputs.unschedulable_pods,
            "reportingPods": inputs.reporting_pods,
        },
    }


def is_news(decision: Decision, last: Mapping[str, Any]) -> bool:
    """Return whether the decision is worth writing after the record `last` (empty: there is none).

    A change always is; what holds for the same reason as the last is not, be it a hold or a dry run's proposal.
    """
    record = to_record(decision)
    if all(last.get(key) == record[key] for key in ("from", "to", "branch", "reason", "limitedBy")):
        return decision.replicas_to != decision.replicas_from and decision.limited_by != "DryRun"
    if decision.direction == "Hold" and last.get("direction") == "Hold" and last.get("to") == decision.replicas_to:
        written = parse_time(last.get("time"))
        return written is None or decision.time - written >= HOLD_REWRITE_SECONDS
    return True


def scaling_status(
    previous: Mapping[str, Any], news: Decision | None, desired: int, learned: Learned
) -> dict[str, Any]:
    """Return `status.scaling` after one period; equal to `previous` when there is nothing to write.

    Of holds in a row only the latest stays in `history`, so that its five entries show at least two changes.
    """
    status: dict[str, Any] = {**previous, "desiredReplicas": desired}
    if news is not None:
        record = to_record(news)
        history: list[dict[str, Any]] = list(previous.get("history") or [])
        if history and history[-1].get("direction") == "Hold" == record["direction"]:
            history.pop()
        status["lastDecision"] = record
        status["history"] = [*history, record][-HISTORY_KEPT:]
    written: Mapping[str, int] = previous.get("learned") or {}
    measured = _learned_record(learned)
    if news is not None or any(_moved(written.get(name), value) for name, value in measured.items()):
        status["learned"] = {**written, **measured}
    return status


def restore_learned(scaling: Mapping[str, Any]) -> Learned:
    """Return what the last leader had learned, from `status.scaling`; numbers that are not there stay unknown."""
    record: Mapping[str, Any] = scaling.get("learned") or {}
    return Learned(
        total_blocks=int(record.get("blocksPerPod", 0)),
        cold_start_p50=record.get("coldStartP50Seconds"),
        cold_start_p90=record.get("coldStartP90Seconds"),
    )


def _learned_record(learned: Learned) -> dict[str, int]:
    numbers = {
        "blocksPerPod": blocks_per_pod(learned) or None,
        "coldStartP50Seconds": learned.cold_start_p50,
        "coldStartP90Seconds": learned.cold_start_p90,
    }
    return {name: max(1, round(number)) for name, number in numbers.items() if number is not None}


def _moved(written: int | None, value: int) -> bool:
    return written is None or abs(value - written) * 100 > LEARNED_CHANGE_PERCENT * written
