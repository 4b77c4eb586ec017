"""Pods leave without cutting streams: a deleted pod, and a rollout under load."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from octavo_engine import contract

from . import scenarios
from .fleet import Fleet, InferenceService, Object, names_of, pod_url, scripted
from .load import Load, begin, broken, finish

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too


def test_a_deleted_pod_ends_its_streams_normally(service: InferenceService, load: Load) -> None:
    """B34, B55: readiness turns first, requests are taken until the endpoints have spread, streams end whole."""
    service.apply(scripted(2))
    service.wait_ready()
    service.wait_replicas(2)
    victim = service.ready_pods()[0]
    name, url = victim["metadata"]["name"], pod_url(victim)
    busy = load.stream(url, 4, max_tokens=600)
    begin(busy)
    deleted_at = time.monotonic()
    service.kubectl("delete", "pod", name, "--wait=false")
    service.eventually(lambda: load.get(url + contract.PATH_READY).status_code == 503, "not ready any more", 10)
    late = load.stream(url, max_tokens=5)
    finish(late)
    assert broken(late) == [], "endpoints take a moment to spread"
    service.eventually(
        lambda: load.status_of(url) == httpx.codes.SERVICE_UNAVAILABLE, "then new requests are refused", 15
    )
    assert time.monotonic() - deleted_at < contract.DRAIN_PROPAGATION_SECONDS + 5
    meanwhile = load.stream(service.url, 4, max_tokens=5)
    finish(meanwhile)
    assert broken(meanwhile) == [], "the other pod serves"
    finish(busy)
    assert broken(busy) == []
    service.eventually(lambda: name not in names_of(service.pods()), "the pod is gone", 60)


def test_a_rollout_under_load_loses_no_request(service: InferenceService, load: Load) -> None:
    service.apply(scripted(2, rollout={"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 60}))
    service.wait_ready()
    service.wait_replicas(2)
    before = names_of(service.pods())
    stop = threading.Event()
    streams = load.keep(service.url, 8, stop, max_tokens=100)
    service.patch({"podTemplate": {"annotations": {"edit": "1"}}})
    service.eventually(
        lambda: not names_of(service.pods()) & before and len(service.ready_pods()) == 2, "two new pods", 180
    )
    stop.set()
    finish(streams)
    assert len(streams) > 16
    assert scenarios.lost(streams) == []


def test_killing_the_operator_disturbs_no_stream(fleet: Fleet, service: InferenceService, load: Load) -> None:
    service.apply(scripted(1))
    service.wait_ready()
    streams = load.stream(service.url, 4, max_tokens=400)
    begin(streams)
    fleet.kill_operator()
    finish(streams)
    assert broken(streams) == []


def test_a_pod_deleted_while_it_starts_is_gone_long_before_its_grace_period(service: InferenceService) -> None:
    service.apply(scripted(1))
    [pod] = service.eventually(lambda: [p for p in service.pods() if _runs(p)], "the container runs", 60)
    name, deleted_at = pod["metadata"]["name"], time.monotonic()
    service.kubectl("delete", "pod", name, "--wait=false")
    service.eventually(lambda: name not in names_of(service.pods()), "the pod is gone", 60)
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert time.monotonic() - deleted_at < grace / 2


def _runs(pod: Object) -> bool:
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return any("running" in state["state"] for state in states)
