"""The real `octavo operator` as a process of its own, against the control plane."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx

from .control_plane import eventually, free_port

ENGINE_IMAGE = "registry.invalid/octavo-engine:test"


class Operator:
    """One operator process; `stop` ends it as the kubelet would, `kill` as a lost node would."""

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str) -> None:
        self.health = f"http://127.0.0.1:{free_port()}"
        self.metrics = f"http://127.0.0.1:{free_port()}"
        self.log = log
        self.command = [
            "setpriv", "--pdeathsig", "KILL", "--",
            str(Path(sys.executable).with_name("octavo")), "operator", f"--kubeconfig={kubeconfig}",
            f"--engine-image={ENGINE_IMAGE}", "--lease-namespace=octavo-system", "--host=127.0.0.1",
            f"--health-port={self.health.rpartition(':')[2]}", f"--metrics-port={self.metrics.rpartition(':')[2]}",
            *arguments,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Operator":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def leading(self) -> "Operator":
        """Wait until this process holds the lease."""
        eventually(lambda: "octavo_operator_leader 1.0" in self.numbers(), "the operator leads")
        return self

    def numbers(self) -> str:
        try:
            return httpx.get(f"{self.metrics}/metrics", trust_env=False).text
        except httpx.TransportError:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return ""

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
