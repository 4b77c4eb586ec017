"""A real control plane without nodes: etcd, API server, controller manager and scheduler on loopback, in seconds.

The programs are those of the cluster under test. No kubelet: pods get scheduled and never start, unless a test says in
a pod's status what a kubelet would. What needs running engines is tested in the cluster itself.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from octavo_operator.kube.credentials import load_credentials
from tests.cluster import pki
from tests.cluster.build import ensure_built

Found = TypeVar("Found")

NODE = "node1"
OPERATOR_USER = "system:serviceaccount:octavo-system:octavo-operator"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [OPERATOR_USER]}, {"level": "None"}],
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(check: Callable[[], Found], what: str, seconds: float = 30.0) -> Found:
    """The first true value of `check`; an assertion error naming `what` and the last value after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s, last: {value!r}"
        time.sleep(0.1)
    return value


class Api:
    """The administrator's view of the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        credentials = load_credentials(kubeconfig)
        self.kubeconfig = kubeconfig
        self.http = httpx.Client(base_url=credentials.server, verify=credentials.context, timeout=30, trust_env=False)

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> httpx.Response:
        data = None if body is None else json.dumps(body)
        return self.http.request(method, path, content=data, headers={"Content-Type": content_type})

    def get(self, path: str) -> dict[str, Any] | None:
        response = self.call("GET", path)
        if response.status_code == 404:
            return None
        assert response.status_code == 200, response.text
        return dict(response.json())

    def items(self, path: str) -> list[dict[str, Any]]:
        found = self.get(path)
        assert found is not None, path
        return list(found["items"])

    def create(self, path: str, body: Any) -> dict[str, Any]:
        response = self.call("POST", path, body)
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    def merge(self, path: str, patch: Any) -> dict[str, Any]:
        response = self.call("PATCH", path, patch, "application/merge-patch+json")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def delete(self, path: str) -> None:
        response = self.call("DELETE", path)
        assert response.status_code in (200, 202), response.text


class ControlPlane:
    """The running programs, their kubeconfigs and the audit log. OCTAVO_TEST_KUBE names a binary built elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.audit_log = folder / "audit.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.api_port = free_port()
        self.server = f"https://127.0.0.1:{self.api_port}"
        self.ca = pki.authority("octavo-test")

    def start(self) -> None:
        self._write_files()
        kube = os.environ.get("OCTAVO_TEST_KUBE") or str(ensure_built().binaries / "kube")
        etcd_port, peer_port = free_port(), free_port()
        etcd = f"http://127.0.0.1:{etcd_port}"
        self._run(
            "etcd", kube, "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", "--log-level=error",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        )  # fmt: skip
        self._run(
            "kube-apiserver", kube, "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self.api_port}",
            "--bind-address=127.0.0.1", f"--tls-cert-file={self.folder}/apiserver.crt",
            f"--tls-private-key-file={self.folder}/apiserver.key", f"--client-ca-file={self.folder}/ca.crt",
            "--authorization-mode=RBAC", f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.97.0.0/16",
            f"--audit-policy-file={self.folder}/audit.yaml", f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking", "--profiling=false", "--endpoint-reconciler-type=none",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        )  # fmt: skip
        api = self.admin
        eventually(lambda: self._ready(api), "API server ready", 60)
        for program, more in (
            ("kube-controller-manager", ["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller",
                                         f"--service-account-private-key-file={self.folder}/accounts.key",
                                         f"--root-ca-file={self.folder}/ca.crt"]),
            ("kube-scheduler", []),
        ):  # fmt: skip
            self._run(
                program, kube, program, f"--kubeconfig={self.kubeconfig('admin')}", "--leader-elect=false",
                "--bind-address=127.0.0.1", f"--secure-port={free_port()}", *more,
            )  # fmt: skip
        self._node(api)

    @contextlib.contextmanager
    def frozen(self, program: str) -> Iterator[None]:
        """Stop a program's process in its tracks: it keeps its connections and answers nothing."""
        [process] = [each for each in self.processes if program in each.args]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.admin.http.close()
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes:
            process.wait()

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def user(self, name: str, user: str, group: str = "") -> Path:
        """Write the kubeconfig of a user and return its path."""
        text = pki.kubeconfig(self.server, self.ca, pki.issue(self.ca, user, group), "octavo-test")
        path = self.kubeconfig(name)
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    @cached_property
    def admin(self) -> Api:
        """The one client of the administrator; `stop` closes it."""
        return Api(self.kubeconfig("admin"))

    def _ready(self, api: Api) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return api.call("GET", "/readyz").status_code == 200
        dead = [process.args for process in self.processes if process.poll() is not None]
        assert not dead, f"ended early: {dead}; see {self.folder}"
        return False

    def _run(self, name: str, *command: str) -> None:
        # The kernel ends them with this process, however it ends.
        guarded = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(guarded, stdout=log, stderr=log, cwd=self.folder))

    def _write_files(self) -> None:
        self.ca.write(self.folder, "ca")
        pki.issue(self.ca, "kube-apiserver", hosts=["127.0.0.1", "localhost"]).write(self.folder, "apiserver")
        pki.write_secret(self.folder / "accounts.key", pki.authority("accounts").key_pem)
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        self.user("admin", "admin", "system:masters")
        self.user("operator", OPERATOR_USER)

    def _node(self, api: Api) -> None:
        """Register a node that no kubelet runs: pods are assigned to it and wait there."""
        room = {"cpu": "64", "memory": "256Gi", "pods": "200", "nvidia.com/gpu": "2"}
        api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        api.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})

        def schedulable() -> bool:
            node = api.get(f"/api/v1/nodes/{NODE}") or {}
            if node["spec"].get("taints"):
                api.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
            return not node["spec"].get("taints")

        eventually(schedulable, "the node takes pods")


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
