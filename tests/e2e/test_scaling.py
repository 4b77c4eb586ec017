"""A service grows and shrinks under real load, by itself and by an external scaler, and no stream is cut."""

from __future__ import annotations

import threading

import pytest

from . import scenarios
from .fleet import InferenceService, names_of, pod_url, scripted
from .load import Load, begin, broken, finish

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too

QUICK_DOWN = {"scaleDown": {"stabilizationSeconds": 15, "periodSeconds": 10}}


def test_load_grows_it_and_idleness_shrinks_it(service: InferenceService, load: Load) -> None:
    service.apply(scripted(None, scenarios.SLOW, autoscaling={"minReplicas": 1, "maxReplicas": 2, **QUICK_DOWN}))
    service.wait_ready()
    figures = scenarios.grow_and_shrink(service, load, requests=64, max_tokens=300)
    assert figures.up["branch"] in ("Demand", "Latency")
    assert figures.up["inputs"]["demandBlocks"] > 0
    assert (figures.down["from"], figures.down["to"]) == (2, 1)
    assert figures.cut == 0


def test_an_external_scaler_moves_it_through_scale_and_a_cordoned_pod_finishes_its_streams(
    service: InferenceService, load: Load
) -> None:
    service.apply(scripted(1, autoscaling={"mode": "External"}))
    service.wait_ready()
    service.kubectl("scale", f"ois/{service.name}", "--replicas=3")
    service.wait_replicas(3)
    busy = [stream for pod in service.ready_pods() for stream in load.stream(pod_url(pod), max_tokens=500)]
    begin(busy)
    scale = service.write_scale(1)
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["replicas"]) == ("Scale", 3, 3)
    selected = service.cluster.get("pods", "-n", service.namespace, "-l", scale["status"]["selector"])["items"]
    assert names_of(selected) == names_of(service.ready_pods())
    cordoned = service.eventually(
        lambda: scenarios.cordoned(service.pods()) or None, "two pods are cordoned, busy as they are"
    )
    assert len(cordoned) == 2
    assert all(stream.ended_at is None for stream in busy)
    assert len(service.ready_pods()) == 3, "a cordoned pod stays Ready"
    finish(busy)
    assert broken(busy) == []
    service.wait_replicas(1)
    assert not names_of(service.pods()) & cordoned
    document = service.document()
    assert (document["spec"]["replicas"], document["status"]["replicas"]) == (1, 1)


def test_growing_again_takes_the_cordon_back(service: InferenceService, load: Load) -> None:
    service.apply(scripted(2))
    service.wait_ready()
    service.wait_replicas(2)
    busy = [stream for pod in service.ready_pods() for stream in load.stream(pod_url(pod), max_tokens=600)]
    begin(busy)
    before = names_of(service.pods())
    service.patch({"replicas": 1})
    service.eventually(lambda: scenarios.cordoned(service.pods()), "one pod is cordoned")
    service.patch({"replicas": 2})
    service.eventually(lambda: not scenarios.cordoned(service.pods()), "no pod is cordoned")
    finish(busy)
    assert broken(busy) == []
    assert names_of(service.pods()) == before


def test_every_switch_of_modes_under_load_keeps_the_pods(service: InferenceService, load: Load) -> None:
    service.apply(scripted(2))
    service.wait_ready()
    service.wait_replicas(2)
    stop = threading.Event()
    streams = load.keep(service.url, 8, stop, max_tokens=50)
    changes = scenarios.switch_modes(service)
    stop.set()
    finish(streams)
    assert broken(streams) == []
    assert changes == []
