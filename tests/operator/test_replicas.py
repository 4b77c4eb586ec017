"""Who decides the replicas, and what they are: the table of modes and switches."""

from typing import Any

import pytest

from octavo_operator.api import InferenceServiceSpec
from octavo_operator.plan.replicas import LiveReplicas, live_replicas, wanted_replicas

BUILTIN = {"autoscaling": {"mode": "Builtin", "minReplicas": 2, "maxReplicas": 5}}
EXTERNAL = {"autoscaling": {"mode": "External"}}
SUSPENDED = {"suspend": True}
NOTHING = None


def live(count: int, mode: str | None = None, leftover: int | None = None, resume: int | None = None) -> LiveReplicas:
    return LiveReplicas(count, mode, leftover, resume)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "before", "target", "wanted", "write_scale"),
    [
        # Fixed: the spec's number, whatever lives.
        ({"replicas": 3}, NOTHING, None, 3, None),
        ({"replicas": 3}, live(5, "Fixed"), None, 3, None),
        ({"replicas": 0}, live(5, "Fixed"), None, 0, None),
        # External: the scaler's number; absent, the live count is written once.
        ({**EXTERNAL, "replicas": 4}, live(1, "External"), None, 4, None),
        (EXTERNAL, NOTHING, None, 1, 1),
        (EXTERNAL, live(3, "Builtin"), None, 3, 3),
        # Builtin: the autoscaler's word, else the live count, else the minimum.
        (BUILTIN, NOTHING, None, 2, None),
        (BUILTIN, live(4, "Builtin"), None, 4, None),
        (BUILTIN, live(4, "Builtin"), 5, 5, None),
        ({**BUILTIN, "replicas": 1}, live(4, "Builtin", 1), None, 4, None),
        # Switches keep the live count; a number that was edited in the same breath counts.
        ({**BUILTIN, "replicas": 3}, live(3, "Fixed"), None, 3, None),
        ({**EXTERNAL, "replicas": 3}, live(5, "Builtin", 3), None, 5, 5),
        ({"replicas": 3}, live(5, "Builtin", 3), None, 5, 5),
        ({"replicas": 4}, live(5, "Builtin", 3), None, 4, None),
        ({"replicas": 4}, live(5, "Builtin", None), None, 4, None),
        ({"replicas": 3}, live(3, "Builtin", 3), None, 3, None),
        ({"replicas": 3}, live(5, "External"), None, 3, None),
        # Annotations lost: the spec is used.
        ({"replicas": 3}, live(5), None, 3, None),
        # A suspended service has none, and comes back as it was.
        ({**SUSPENDED, "replicas": 3}, live(3, "Fixed"), None, 0, None),
        ({**SUSPENDED, **BUILTIN}, live(4, "Builtin"), None, 0, None),
        (BUILTIN, live(0, "Builtin", None, 4), None, 4, None),
        ({**EXTERNAL, "replicas": 3}, live(0, "Builtin", 3, 5), None, 5, 5),
    ],
)
def test_table(
    spec: dict[str, Any], before: LiveReplicas | None, target: int | None, wanted: int, write_scale: int | None
) -> None:
    parsed = InferenceServiceSpec.model_validate({"model": {"uri": "scripted://"}, **spec})
    found = wanted_replicas(parsed, before, target)
    assert (found.wanted, found.write_scale) == (wanted, write_scale)


def test_what_is_written_is_read_back() -> None:
    spec = InferenceServiceSpec.model_validate({"model": {"uri": "x"}, **BUILTIN, **SUSPENDED, "replicas": 3})
    wanted = wanted_replicas(spec, live(4, "Builtin", 3))
    deployment = {"metadata": {"annotations": wanted.annotations}, "spec": {"replicas": wanted.wanted}}
    assert live_replicas(deployment) == LiveReplicas(0, "Builtin", 3, 4)
    assert live_replicas(None) is None
