"""The first process of a cluster's, or of a node's, own process-id namespace: starts, restarts and reaps programs.

It decides nothing: what to run stands in its JSON file, and `up` and the tests tell it when, over a Unix socket. When
it dies, however it dies, the kernel kills every process of the namespace, and with them go mounts, links and rules.
Standard library only: it must start in a blink and outlive changes to the virtual environment.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESTART_DELAY = 1.0


class Program:
    """One supervised program: wanted or not, running or not, and how it ended last."""

    def __init__(self, name: str, argv: list[str], log: Path) -> None:
        self.name, self.argv, self.log = name, argv, log
        self.wanted = False
        self.pid = 0
        self.restarts = 0
        self.last_exit: int | None = None
        self.retry_at = 0.0

    def spawn(self, keep: list[int]) -> None:
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=keep
            )
        self.pid = child.pid
        child.returncode = 0  # this process reaps by itself; Popen must not

    def ended(self, exit_code: int) -> None:
        self.pid = 0
        self.last_exit = exit_code
        if self.wanted:
            self.restarts += 1
            self.retry_at = time.monotonic() + RESTART_DELAY
            with self.log.open("a") as log:
                log.write(f"supervisor: {self.name} ended with {exit_code}, starting it again\n")

    def report(self) -> dict[str, Any]:
        return {"wanted": self.wanted, "pid": self.pid, "restarts": self.restarts, "last_exit": self.last_exit}


class Supervisor:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.keep: dict[str, list[int]] = spec["keep"]
        self.programs = {
            name: Program(name, argv, Path(spec["logs"]) / f"{name}.log") for name, argv in spec["programs"].items()
        }
        self.listener = socket.socket(socket.AF_UNIX)
        Path(spec["socket"]).unlink(missing_ok=True)
        self.listener.bind(spec["socket"])
        self.listener.listen(64)
        self.starter: int | None = 0 if spec["starter"] else None  # `up` holds the other end of our standard input
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        while True:
            sources = [self.listener.fileno(), self.wake_read, *([] if self.starter is None else [self.starter])]
            ready, _, _ = select.select(sources, [], [], 0.5)
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
            if self.starter in ready and not os.read(0, 1):
                sys.exit("supervisor: whoever ran `up` died before the cluster was up")
            self.reap()
            if self.listener.fileno() in ready:
                self.answer()
            self.start_due()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for program in self.programs.values():
                if program.pid == pid:
                    program.ended(os.waitstatus_to_exitcode(status))

    def start_due(self) -> None:
        for program in self.programs.values():
            if program.wanted and not program.pid and time.monotonic() >= program.retry_at:
                program.spawn(self.keep.get(program.name, []))

    def answer(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(2)
            try:
                with connection.makefile("r") as lines:
                    request = json.loads(lines.readline())
                reply = self.obey(request["verb"], request.get("program", ""))
                connection.sendall(json.dumps(reply).encode() + b"\n")
            except (OSError, ValueError, KeyError) as error:
                print(f"supervisor: request not understood or not answered: {error!r}", flush=True)

    def obey(self, verb: str, name: str) -> dict[str, Any]:
        if verb == "keep":
            self.starter = None
            return {"ok": True}
        if verb == "status":
            return {name: program.report() for name, program in self.programs.items()}
        program = self.programs.get(name)
        if program is None:
            return {"error": f"no program {name!r}; there are: {', '.join(self.programs)}"}
        if verb == "start":
            program.wanted, program.retry_at = True, 0.0
        elif verb in ("stop", "kill"):
            program.wanted = False
            if program.pid:
                os.kill(program.pid, signal.SIGTERM if verb == "stop" else signal.SIGKILL)
        else:
            return {"error": f"no verb {verb!r}; there are: keep, status, start, stop, kill"}
        return program.report()


def main(spec_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    os.environ["PATH"] = spec["path"]
    os.chdir(spec["folder"])
    socket.sethostname(spec["hostname"])
    for command in spec["setup"]:
        finished = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        if finished.returncode:
            sys.exit(f"supervisor: {' '.join(command)} ended with {finished.returncode}")
    Supervisor(spec).run()


if __name__ == "__main__":
    main(sys.argv[1])
