"""python -m tests.cluster: build, start, use and stop a real Kubernetes cluster on this machine."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from . import cgroups, control, lifecycle
from .build import ensure_built
from .cluster import LocalCluster, local_cluster
from .errors import ClusterError
from .layout import REPOSITORY, Layout, Node
from .leftovers import cluster_names
from .leftovers import leftovers as find_leftovers
from .progress import console

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Name = Annotated[str, typer.Option("--name", "-n", help="Which cluster; several may run side by side.")]
DEFAULT = "dev"
PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


@contextmanager
def plainly() -> Iterator[None]:
    """Errors as a sentence, Ctrl-C as its exit status."""
    try:
        yield
    except ClusterError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted; nothing of the cluster is left running")
        raise typer.Exit(130) from None


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM during `up` cleans up as Ctrl-C does."""
    raise KeyboardInterrupt


def running(name: str) -> LocalCluster:
    return local_cluster(name, start=False)


@app.command()
def build() -> None:
    """Build every program and image into the cache (minutes once, nothing after)."""
    with plainly():
        print(ensure_built().folder)


@app.command()
def up(
    name: Name = DEFAULT,
    gpus: Annotated[int, typer.Option(help="Fake nvidia.com/gpu per node.", min=0)] = 4,
    api_port: Annotated[int, typer.Option(help="Loopback port of the API server; 0 is any free one.")] = 0,
    proxy_port: Annotated[int, typer.Option(help="Loopback port of the HTTP proxy; 0 is any free one.")] = 0,
) -> None:
    """Start the cluster (two nodes, about 20 s) and print how to use it."""
    signal.signal(signal.SIGTERM, interrupt)
    with plainly():
        cluster = local_cluster(name, lifecycle.Options(gpus, api_port, proxy_port))
        console.print(f"cluster {name!r} is up, two nodes Ready (started in {cluster.facts['seconds']} s)")
        print_environment(cluster)


@app.command()
def down(
    name: Name = DEFAULT,
    every: Annotated[bool, typer.Option("--all", help="Every cluster of this machine, whatever its name.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Every cluster that this checkout started.")] = False,
) -> None:
    """Stop the cluster and remove every trace of it, also after a crash."""
    with plainly():
        for each in cluster_names(REPOSITORY if mine else None) if every or mine else [name]:
            lifecycle.down(Layout(each))
            if left := find_leftovers(each):
                raise ClusterError("still there after down:\n" + "\n".join(left))


@app.command()
def status(name: Name = DEFAULT) -> None:
    """Whether it runs, and every program of it."""
    with plainly():
        layout = Layout(name)
        facts = lifecycle.state(layout)
        if facts is None:
            alive = len(cgroups.processes(layout.cgroup))
            print(f"cluster {name!r} is not up" + (f" ({alive} processes: starting, or dying)" if alive else ""))
            raise typer.Exit(1)
        print(json.dumps(facts))
        places: list[Layout | Node] = [layout, *layout.nodes]
        for place in places:
            for program, report in control.ask(place.control_socket, "status").items():
                print(f"{place.name:<12} {program:<24} {json.dumps(report)}")


@app.command()
def env(name: Name = DEFAULT) -> None:
    """Shell lines for your own shell: eval "$(python -m tests.cluster env)"."""
    with plainly():
        print_environment(running(name))


def print_environment(cluster: LocalCluster) -> None:
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.binaries}:$PATH")
    print(f"export OCTAVO_CLUSTER_PROXY={cluster.proxy_url}")


@app.command(context_settings=PASS_THROUGH)
def kubectl(context: typer.Context, name: Name = DEFAULT) -> None:
    """kubectl against the cluster, whatever your own kubeconfig says."""
    with plainly():
        cluster = running(name)
        os.execv(cluster.kubectl_path, ["kubectl", f"--kubeconfig={cluster.kubeconfig}", *context.args])


@app.command(name="import")
def import_(archives: list[Path], name: Name = DEFAULT) -> None:
    """Bring OCI image archives onto every node."""
    with plainly():
        running(name).import_images(*archives)


@app.command()
def relay(target: str, name: Name = DEFAULT, local_port: int = 0) -> None:
    """Expose NAMESPACE/SERVICE:PORT (or NAMESPACE/pod/NAME:PORT) on this machine's loopback; prints the URL."""
    with plainly():
        print(running(name).relay(target, local_port))


@app.command()
def logs(where: str = "control", program: str = "", name: Name = DEFAULT) -> None:
    """Print a program's log; without a program, the paths of all logs."""
    with plainly():
        layout = Layout(name)
        if program:
            sys.stdout.write(running(name).log(where, program))
        else:
            print("\n".join(str(path) for path in sorted(layout.logs.rglob("*.log"))))


@app.command()
def leftovers(name: Annotated[str, typer.Option("--name", "-n", help="One cluster; else any.")] = "") -> None:
    """List what clusters have left on this machine; fails if there is anything."""
    if left := find_leftovers(name):
        print("\n".join(left))
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m tests.cluster")
