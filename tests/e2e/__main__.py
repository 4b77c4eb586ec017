"""`python -m tests.e2e scaling|idle`: the long forms, in the cluster under test, and their figures."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from examples.demo import stage

from tests.cluster.cluster import LocalCluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixture import get_cluster

from . import scenarios
from .fleet import Fleet, InferenceService, install, scripted
from .load import Load, broken, finish

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")]


@contextmanager
def deployed() -> Iterator[tuple[Fleet, InferenceService]]:
    """The product, and a service's handle in a namespace of its own."""
    cluster = get_cluster()
    if not isinstance(cluster, LocalCluster):
        sys.exit("these runs need the cluster built on this machine: unset OCTAVO_TEST_KUBECONFIG")
    fleet = install(cluster)
    namespace = cluster.namespace(f"test-{uuid.uuid4().hex[:8]}")
    try:
        yield fleet, fleet.service(namespace)
        cluster.kubectl("delete", "ois", "--all", "-n", namespace, timeout=180)
    finally:
        cluster.delete_namespace(namespace, wait=False)


@app.command()
def scaling(
    requests: Annotated[int, typer.Option(help="Long requests at once.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 160,
    model: Annotated[str, typer.Option(help="A scripted:// URI; default: the example's service.")] = "",
    json_file: JsonFile = None,
) -> None:
    """1 → 2 → 1 under load, then an external write to /scale, then every switch of modes under load."""
    spec: dict[str, Any] = yaml.safe_load(stage.MANIFEST.read_text())["spec"]
    if model:
        spec = scripted(None, model, autoscaling=spec["autoscaling"])
    with deployed() as (fleet, service), Load(fleet.cluster.proxy_url) as load:
        service.apply(spec)
        service.wait_ready(300)
        grown = scenarios.grow_and_shrink(service, load, requests=requests, max_tokens=tokens, ignore_eos=True)
        print(_decision(grown.up), _decision(grown.down), sep="\n")
        print(
            f"second replica ready {grown.two_ready:.0f} s after the load began, which took {grown.load_seconds:.0f} s"
        )
        print(f"one replica again {grown.one_again:.0f} s after it ended")
        print(f"streams {grown.streams}, cut {grown.cut}, tokens {grown.tokens} of {requests * tokens}")
        moved = scenarios.moved_by_scale(service)
        print(f"External: {moved}")
        stop = threading.Event()
        streams = load.keep(service.url, 4, stop, max_tokens=16, ignore_eos=True)
        changes = scenarios.switch_modes(service)
        stop.set()
        finish(streams)
        cut = len(broken(streams))
        print(f"Fixed > Builtin > External > Builtin > Fixed: {len(changes)} pods added or removed, no edit refused,")
        print(f"{len(streams)} streams meanwhile, cut {cut}")
    _write(json_file, {**grown._asdict(), "moved": moved, "pod_changes": changes, "switch_cut": cut})
    complete = grown.tokens == requests * tokens
    sys.exit(0 if complete and not grown.cut and not changes and not cut else 1)


@app.command()
def idle(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60,
    json_file: JsonFile = None,
) -> None:
    """What the operator's ServiceAccount writes while nothing happens, by the API server's audit log."""
    with deployed() as (fleet, service):
        service.apply(scripted(None, autoscaling={"minReplicas": 1, "maxReplicas": 2}))
        service.wait_ready()
        found = scenarios.idle_writes(fleet, seconds)
    print(f"in {seconds:.0f} idle seconds: {found.lease} writes of its Lease, {len(found.other)} others")
    print(*found.other, sep="\n")
    _write(json_file, found._asdict())
    sys.exit(0 if not found.other else 1)


def _decision(record: dict[str, Any]) -> str:
    return f"{record['from']} > {record['to']} ({record['branch']} {record['reason']}): {record['message']}"


def _write(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=2))


def _plainly(run: Callable[[], None]) -> None:
    try:
        run()
    except (ClusterError, stage.DemoError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    _plainly(app)
