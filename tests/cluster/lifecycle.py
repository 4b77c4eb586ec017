"""`up`, `down` and what they share. Whatever the kernel does not clean by itself is cleaned here, by name.

up:    render files -> enter a new control group -> unshare(pid, mount, net, uts, ipc, cgroup) -> supervisor
down:  kill what is in the control group -> remove the group -> remove the state folder
The kernel does the rest: the first process of a process-id namespace takes all others with it, and mounts, links,
routes and firewall rules live in namespaces that end with their last process.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import cgroups, control, programs
from .boot import Boot
from .build import Built, configuration_hash
from .errors import ClusterError
from .layout import Layout, clusters_dir
from .limits import raise_limits, restore_limits
from .progress import Steps
from .render import render


@dataclass(frozen=True)
class Options:
    gpus: int = 4  # per node
    api_port: int = 0  # 0: any free port
    proxy_port: int = 0


@contextlib.contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """One `up` or `down` of a name at a time. The file goes with its holder: a lock counts only while it has a name."""
    clusters_dir().mkdir(parents=True, exist_ok=True)
    while True:
        with layout.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not layout.lock.exists() or os.stat(layout.lock).st_ino != os.fstat(lock.fileno()).st_ino:
                continue
            try:
                yield
            finally:
                layout.lock.unlink()
                with contextlib.suppress(OSError):  # another cluster's state is in there
                    clusters_dir().rmdir()
            return


def state(layout: Layout) -> dict[str, Any] | None:
    """What `up` wrote when the cluster was ready; None if it is not running or never got that far."""
    if not cgroups.processes(layout.cgroup) or not layout.state.exists():
        return None
    found: dict[str, Any] = json.loads(layout.state.read_text())
    return found


def up(layout: Layout, built: Built, options: Options) -> bool:
    """Start the cluster and wait until it is ready; False if it already was."""
    with exclusive(layout):
        if state(layout):
            return False
        destroy(layout)  # what a dead one left
        began = time.monotonic()
        facts: dict[str, Any] = {
            "api_port": options.api_port or free_port(),
            "proxy_port": options.proxy_port or free_port(),
            "gpus": options.gpus,
            "build": str(built.folder),
            "configuration": configuration_hash(),
        }
        try:
            with open("/proc/self/ns/net", "rb") as host_netns, Steps() as steps:
                raise_limits()
                render(layout, built, {**facts, "host_netns": host_netns.fileno()})
                with spawn(layout, host_netns.fileno()):
                    Boot(layout, built, facts).everything(steps)
                    control.ask(layout.control_socket, "keep")
        except ClusterError:
            kill(layout)  # the logs stay until the next up or down
            raise
        except BaseException:
            destroy(layout)
            raise
        facts["seconds"] = round(time.monotonic() - began, 1)
        partial = layout.state.with_suffix(".partial")
        partial.write_text(json.dumps(facts))
        partial.rename(layout.state)
        return True


def down(layout: Layout) -> None:
    """Stop the cluster and remove every trace of it. Harmless when there is none."""
    with exclusive(layout):
        destroy(layout)


def destroy(layout: Layout) -> None:
    kill(layout)
    cgroups.remove(layout.cgroup)
    if mounted := [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {layout.run}/" in line]:
        raise ClusterError(f"refusing to delete {layout.run}, something is mounted in it:\n" + "\n".join(mounted))
    if layout.run.exists():
        shutil.rmtree(layout.run)
    restore_limits()


def kill(layout: Layout, patience: float = 30) -> None:
    deadline = time.monotonic() + patience
    while alive := cgroups.processes(layout.cgroup):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"processes {sorted(alive)} of cluster {layout.name!r} survive SIGKILL; see `ps` and dmesg"
            )
        time.sleep(0.02)


def spawn(layout: Layout, host_netns: int) -> IO[bytes]:
    """Start the supervisor in the cluster's control group and namespaces; it lives at first only while the file is.

    `setsid --fork` leaves it to the system's first process, which reaps it whenever it dies.
    """
    enter = "".join(f"echo $$ > '{path}'; " for path in cgroups.create(layout.cgroup))
    namespaces = [*programs.UNSHARE, "--net", "--uts", "--ipc", *cgroups.enter_namespace(layout.cgroup)]
    command = [*namespaces, *programs.supervise(sys.executable, layout.spec)]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, (layout.logs / "supervisor.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", "sh", "-ec", f'{enter} exec "$@"', "octavo-cluster", *command],
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd="/",
            pass_fds=[host_netns],
            check=True,
        )
    return os.fdopen(writing, "wb")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
