"""The operator's life: one leader at a time, idle silence, and what happened while it was away."""

import json
import time
from pathlib import Path
from typing import Any

from octavo_operator.leadership import DURATION_SECONDS
from octavo_operator.runtime import EXIT_LEASE_LOST

from . import rbac
from .conftest import Services
from .control_plane import OPERATOR_USER, Api, ControlPlane, eventually
from .operator_process import Operator

FIXED: dict[str, Any] = {"model": {"uri": "scripted://"}, "replicas": 2}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/octavo-system/leases/octavo-operator"


def holder(api: Api) -> str:
    return str((api.get(LEASE) or {"spec": {}})["spec"].get("holderIdentity", ""))


def writes(plane: ControlPlane, since: int) -> list[str]:
    """What the operator wrote after byte `since` of the audit log, the Lease apart."""
    with plane.audit_log.open() as log:
        log.seek(since)
        events = [json.loads(line) for line in log if line.endswith("\n")]
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in events
        if event["user"]["username"] == OPERATOR_USER
        and event["verb"] not in ("get", "list", "watch")
        and event["objectRef"]["resource"] != "leases"
    ]


def test_idle_it_writes_nothing_but_its_lease_and_a_restart_writes_nothing(
    plane: ControlPlane, services: Services, operator_log: Path
) -> None:
    autoscaled = {"model": {"uri": "scripted://"}, "autoscaling": {"minReplicas": 2, "maxReplicas": 3}}
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        for name, spec in (("fixed", FIXED), ("builtin", autoscaled)):
            services.create(spec, name)
        services.make_ready(4)
        for name in ("fixed", "builtin"):
            eventually(lambda name=name: services.condition("Ready", name).get("reason") == "Serving", f"{name} serves")
        quiet_since = eventually(lambda: _quiet(plane), "the writes end", 60)
        assert writes(plane, quiet_since) == []
    since = plane.audit_log.stat().st_size
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        eventually(lambda: "octavo_operator_services 2.0" in operator.numbers(), "both are reconciled")
        eventually(lambda: _passes(operator) >= 4, "both had passes")
        assert writes(plane, since) == []


def _quiet(plane: ControlPlane, seconds: float = 15.0) -> int:
    """The size of the audit log before `seconds` in which the operator wrote nothing, else 0."""
    since = plane.audit_log.stat().st_size
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if writes(plane, since):
            return 0
        time.sleep(0.5)
    return since


def _passes(operator: Operator) -> float:
    [line] = [
        each for each in operator.numbers().splitlines() if each.startswith("octavo_operator_reconcile_seconds_count")
    ]
    return float(line.split()[1])


def test_deleted_while_it_was_down_goes_once_it_is_back(
    plane: ControlPlane, services: Services, operator_log: Path
) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        services.create(FIXED)
        services.deployment()
        eventually(services.settled, "settled")
    services.api.delete(f"{services.root}/demo")
    assert services.get()["metadata"]["deletionTimestamp"]
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        eventually(lambda: services.api.get(f"{services.root}/demo") is None, "the resource is gone")

    def childless() -> bool:
        services.bury()
        return services.children() == []

    eventually(childless, "every child is gone")


def test_edited_while_it_was_down_converges_once_it_is_back(
    plane: ControlPlane, services: Services, operator_log: Path
) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        services.create(FIXED)
        services.deployment()
        eventually(services.settled, "settled")
    assert services.edit({"replicas": 3}) == (200, "")
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        eventually(lambda: services.deployment()["spec"]["replicas"] == 3, "three replicas")


def test_a_clean_exit_hands_the_lease_over_at_once(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    with Operator(plane.kubeconfig("operator"), tmp_path / "first.log") as first:
        first.leading()
        leader = holder(api)
        with Operator(plane.kubeconfig("operator"), tmp_path / "second.log") as second:
            eventually(lambda: "octavo_operator_leader 0.0" in second.numbers(), "the second one stands by")
            assert holder(api) == leader
            began = time.monotonic()
            assert first.stop() == 0
            second.leading()
            assert time.monotonic() - began < 10
            assert holder(api) not in ("", leader)
    assert holder(api) == ""


def test_a_killed_leader_is_succeeded_after_its_lease(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    with (
        Operator(plane.kubeconfig("operator"), tmp_path / "first.log") as first,
        Operator(plane.kubeconfig("operator"), tmp_path / "second.log") as second,
    ):
        first.leading() if "leader 1.0" in first.numbers() else eventually(lambda: holder(api), "a leader")
        leader, other = (first, second) if "octavo_operator_leader 1.0" in first.numbers() else (second, first)
        began = time.monotonic()
        leader.kill()
        other.leading()
        assert 10 < time.monotonic() - began < 25


def test_a_leader_whose_lease_is_taken_exits(plane: ControlPlane, api: Api, operator_log: Path) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        api.merge(LEASE, {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 1}})
        assert operator.process is not None
        assert operator.process.wait(15) == EXIT_LEASE_LOST
    api.delete(LEASE)


def test_an_api_server_that_stands_still_for_a_moment_costs_nothing(
    plane: ControlPlane, services: Services, operator_log: Path
) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        services.create(FIXED)
        services.deployment()
        eventually(services.settled, "settled")
        with plane.frozen("kube-apiserver"):
            time.sleep(4)  # the length of the outage, not a wait
        assert services.edit({"replicas": 3}) == (200, "")
        eventually(lambda: services.deployment()["spec"]["replicas"] == 3, "three replicas")
        assert operator.process is not None
        assert operator.process.poll() is None


def test_one_namespace_needs_rights_in_that_namespace_only(
    plane: ControlPlane, api: Api, services: Services, operator_log: Path
) -> None:
    user = "namespaced-operator"
    for path, document in rbac.namespaced(user, services.namespace):
        api.create(path, document)
    namespaces = (f"--namespace={services.namespace}", f"--lease-namespace={services.namespace}")
    with Operator(plane.user(user, user), operator_log, *namespaces) as operator:
        operator.leading()
        services.create(FIXED)
        services.make_ready(2)
        eventually(lambda: services.condition("Ready").get("reason") == "Serving", "serving")
    assert "403" not in operator_log.read_text()


def test_new_defaults_roll_one_service_at_a_time(plane: ControlPlane, services: Services, operator_log: Path) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        for name in ("one", "two", "three"):
            services.create(FIXED if name != "three" else {**FIXED, "engine": {"image": "its.own/engine:1"}}, name)
        for name in ("one", "two", "three"):
            eventually(lambda name=name: services.settled(name), f"{name} is settled")
    before = {name: services.deployment(name)["spec"]["template"] for name in ("one", "two", "three")}
    changed = ("--engine-image=engine:2", "--engine-image-pull-policy=Always")
    with Operator(plane.kubeconfig("operator"), operator_log, *changed) as operator:
        operator.leading()

        def rolled() -> list[str]:
            return [name for name, old in before.items() if services.deployment(name)["spec"]["template"] != old]

        eventually(rolled, "one rolls", 60)

        def waiting() -> list[str]:
            found = (services.condition("Progressing", name) for name in before)
            told = [each["message"] for each in found if each["reason"] == "WaitingForRollout"]
            return [each for each in told if services.namespace in each]

        messages = eventually(lambda: found if len(found := waiting()) == 2 else [], "the others say so")
        [first] = rolled()
        assert all(f"wait for the rollout of {services.namespace}/{first}" in each for each in messages)


def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    plane: ControlPlane, services: Services, operator_log: Path
) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        assert operator.process is not None
        began = time.monotonic()
        with plane.frozen("kube-apiserver"):
            assert operator.process.wait(30) == EXIT_LEASE_LOST
        assert time.monotonic() - began < DURATION_SECONDS
