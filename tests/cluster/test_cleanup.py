"""However a cluster ends, nothing of it stays: processes, mounts, links, namespaces, groups, rules, files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import lifecycle
from tests.cluster.build import ensure_built
from tests.cluster.cluster import local_cluster
from tests.cluster.control import supervisor_pid
from tests.cluster.layout import REPOSITORY, Layout
from tests.cluster.leftovers import difference, everything, leftovers
from tests.cluster.pods import probe_pod
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.cluster

NAME = f"cleanup-{os.getpid()}"  # sessions side by side must not end each other's
LAYOUT = Layout(NAME)


@contextmanager
def nothing_left() -> Iterator[None]:
    """What the machine holds is the same before and after, and none of it is this cluster's."""
    lifecycle.down(LAYOUT)
    before = everything()
    try:
        yield
    finally:
        found = leftovers(NAME) + difference(before, everything())
        lifecycle.down(LAYOUT)
    assert found == []


def cluster_with_a_pod() -> None:
    cluster = local_cluster(NAME)
    cluster.apply(probe_pod("web", "default"))
    cluster.wait("pod/web", "condition=Ready")


def start_up() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.cluster", "up", "--name", NAME]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def gone() -> bool:
    return not [line for line in leftovers(NAME) if line.startswith("process")]


def test_down_removes_everything_and_is_harmless_twice() -> None:
    with nothing_left():
        cluster_with_a_pod()
        assert leftovers(NAME)
        lifecycle.down(LAYOUT)
        lifecycle.down(LAYOUT)


@pytest.mark.parametrize("victim", ["the supervisor", "its parent"])
def test_after_sigkill_no_process_lives_and_down_removes_the_rest(victim: str) -> None:
    with nothing_left():
        cluster_with_a_pod()
        supervisor = supervisor_pid(LAYOUT, LAYOUT.spec)
        parent = int(Path(f"/proc/{supervisor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(supervisor if victim == "the supervisor" else parent, signal.SIGKILL)
        wait_until(gone, 10, "every process of a killed cluster ends by itself")
        lifecycle.down(LAYOUT)


def test_up_starts_afresh_over_the_remains_of_a_dead_cluster() -> None:
    with nothing_left():
        local_cluster(NAME)
        os.kill(supervisor_pid(LAYOUT, LAYOUT.spec), signal.SIGKILL)
        wait_until(gone, 10, "every process of a killed cluster ends by itself")
        cluster_with_a_pod()
        lifecycle.down(LAYOUT)


@pytest.mark.parametrize(
    "moment",
    [LAYOUT.run, LAYOUT.control_socket, LAYOUT.logs / "node1" / "kubelet.log"],
    ids=["writing files", "control plane starting", "nodes starting"],
)
@pytest.mark.parametrize("patience", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(moment: Path, patience: signal.Signals) -> None:
    ensure_built()
    with nothing_left():
        process = start_up()
        wait_until(moment.exists, 30, f"{moment} appears during up", interval=0.01)
        process.send_signal(patience)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 130, output


def test_a_killed_up_takes_its_half_started_cluster_along() -> None:
    with nothing_left():
        process = start_up()
        wait_until(LAYOUT.control_socket.exists, 20, "the supervisor of a starting cluster listens", interval=0.01)
        process.kill()
        process.communicate()
        wait_until(gone, 10, "a cluster whose `up` was killed ends by itself")
        lifecycle.down(LAYOUT)


def test_two_clusters_of_different_names_live_side_by_side() -> None:
    with nothing_left():
        first, second = local_cluster(NAME), local_cluster(f"{NAME}-2")
        try:
            first.namespace("only-here")
            assert "only-here" not in second.kubectl("get", "namespaces")
        finally:
            lifecycle.down(second.layout)
        assert "only-here" in first.kubectl("get", "namespaces")
        lifecycle.down(LAYOUT)
