"""Talking to a supervisor over its socket, and entering a cluster's namespaces from the host."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from . import cgroups
from .errors import ClusterError
from .layout import Layout, Node


def ask(socket_path: Path, verb: str, program: str = "") -> dict[str, Any]:
    """One request to a supervisor: keep, status, or start, stop, kill with a program."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(socket_path))
        connection.sendall(json.dumps({"verb": verb, "program": program}).encode() + b"\n")
        # Closed here: a file left to its finalizer swallows a Ctrl-C that arrives in it.
        with connection.makefile("r") as lines:
            reply: dict[str, Any] = json.loads(lines.readline())
    if "error" in reply:
        raise ClusterError(str(reply["error"]))
    return reply


def start(where: Layout | Node, *programs: str) -> None:
    for program in programs:
        ask(where.control_socket, "start", program)


def supervisor_pid(layout: Layout, spec: Path) -> int:
    """The host's id of the supervisor that reads `spec`: the first process of its namespace."""
    for pid in cgroups.processes(layout.cgroup):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        own_ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if str(spec).encode() in command and own_ids[-1] == "1":
            return pid
    raise ClusterError(f"no supervisor for {spec} is running: see `python -m tests.cluster status`")


def enter(layout: Layout, where: Layout | Node, *command: str, check: bool = True) -> str:
    """Run a command inside the control plane's or a node's namespaces; returns what it printed."""
    pid = supervisor_pid(layout, where.spec)
    argv = ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--", *command]
    finished = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and finished.returncode:
        raise ClusterError(f"'{' '.join(command)}' ended with {finished.returncode}: {finished.stderr.strip()}")
    return finished.stdout
