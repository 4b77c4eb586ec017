"""Who has its turn to roll and cannot use it passes it on. A reconciler alone, on a real API server."""

import asyncio

from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.state import SteadyClock
from octavo_operator.kube.client import Client
from octavo_operator.kube.credentials import load_credentials
from octavo_operator.plan import EngineDefaults
from octavo_operator.reconcile.rollouts import SETTLING_SECONDS, Rollouts
from octavo_operator.reconcile.service import Reconciler, Tools

from .conftest import Services
from .control_plane import ControlPlane


def open_rollouts() -> Rollouts:
    """Turns, long after the operator's start."""
    times = iter([0.0])
    return Rollouts(clock=lambda: next(times, 2 * SETTLING_SECONDS))


def make_one_pass(plane: ControlPlane, services: Services, image: str, rollouts: Rollouts) -> None:
    async def run() -> None:
        clock, client = SteadyClock(), Client(load_credentials(plane.kubeconfig("admin")), fence=lambda: None)
        try:
            async with Collector(clock) as collector:
                tools = Tools(client, collector, clock, EngineDefaults(image), rollouts)
                uid = services.get()["metadata"]["uid"]
                await Reconciler(tools, services.namespace, "demo", uid).run_once(woken=True)
        finally:
            await client.close()

    asyncio.run(run())


def image_of(services: Services) -> str:
    return str(services.deployment()["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_service_that_rolls_keeps_its_turn(plane: ControlPlane, services: Services) -> None:
    rollouts = open_rollouts()
    services.create({"model": {"uri": "scripted://"}, "replicas": 1})
    make_one_pass(plane, services, "engine:1", rollouts)
    make_one_pass(plane, services, "engine:2", rollouts)
    assert image_of(services) == "engine:2"
    assert rollouts.admit("another/service") == f"{services.namespace}/demo"


def test_a_service_whose_new_pods_are_refused_passes_its_turn_on(plane: ControlPlane, services: Services) -> None:
    rollouts = open_rollouts()
    services.create({"model": {"uri": "scripted://"}, "replicas": 1})
    make_one_pass(plane, services, "engine:1", rollouts)
    services.edit({"podTemplate": {"tolerations": [{"operator": "Sometimes"}]}})
    make_one_pass(plane, services, "engine:2", rollouts)
    assert image_of(services) == "engine:1"
    assert services.condition("Ready")["reason"] == "InvalidPodTemplate"
    assert rollouts.admit("another/service") is None
