"""The autoscaler's view of itself, after a period over no pods. No cluster."""

import asyncio
from typing import Any, cast

import pytest

from octavo_operator.api import InferenceServiceSpec
from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.state import SteadyClock
from octavo_operator.kube.client import Client
from octavo_operator.reconcile.conditions import ScalingView
from octavo_operator.reconcile.scaling import Scaler


def view_after_a_period(live: int, **autoscaling: Any) -> tuple[ScalingView, dict[str, Any]]:
    spec = {"model": {"uri": "scripted://"}, "autoscaling": {"mode": "Builtin", "maxReplicas": 3, **autoscaling}}
    parsed = InferenceServiceSpec.model_validate(spec)

    async def run() -> tuple[ScalingView, dict[str, Any]]:
        clock = SteadyClock()
        async with Collector(clock) as collector:
            scaler = Scaler(cast(Client, None), collector, clock, "default")  # Only marks go there.
            await scaler.period(parsed, {"spec": spec}, live, [])
            view, status = scaler.view(parsed), scaler.status
            assert view is not None
            assert status is not None
            return view, status["lastDecision"]

    return asyncio.run(run())


@pytest.mark.parametrize(("live", "acts"), [(2, True), (1, False)], ids=["would act", "holds"])
def test_a_dry_run_is_one_whatever_was_decided_last(live: int, acts: bool) -> None:
    view, decision = view_after_a_period(live, dryRun=True, minReplicas=3 if acts else 1)
    assert (decision["limitedBy"] == "DryRun") is acts
    assert view.dry_run
    assert not view_after_a_period(live)[0].dry_run
