"""A cluster as tests and `make demo` use it: this module's own, or somebody else's by its kubeconfig."""

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import control, lifecycle
from .boot import NODE_PROGRAMS, Boot
from .build import Built, ensure_built
from .errors import ClusterError
from .importing import import_archive
from .layout import DOMAIN, Layout
from .namespaces import network_of
from .waiting import wait_until

TEST_LABEL = "octavo.dev/test"


@dataclass
class Cluster:
    """What every cluster can do. `kubectl` is the path of the program; the rest is what the names say."""

    name: str
    kubeconfig: Path
    kubectl_path: str
    _namespaces: list[str] = field(default_factory=list, repr=False)

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run kubectl; returns its standard output, or raises with its standard error."""
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", *arguments]
        finished = subprocess.run(command, input=input, capture_output=True, text=True, check=False, timeout=timeout)
        if check and finished.returncode:
            raise ClusterError(f"'kubectl {' '.join(arguments)}' failed: {finished.stderr.strip()}")
        return finished.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get … -o json`, parsed."""
        document: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return document

    def apply(self, manifest: str | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> str:
        """Server-side apply of YAML text, one document or several."""
        if isinstance(manifest, Mapping):
            manifest = [manifest]
        text = manifest if isinstance(manifest, str) else yaml.safe_dump_all(manifest)
        return self.kubectl("apply", "--server-side", "-f", "-", input=text)

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Make a namespace marked as a test's; Pod Security is restricted by default, labels may say otherwise."""
        metadata = {"name": name, "labels": {TEST_LABEL: "true", **(labels or {})}}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return name

    def delete_namespace(self, name: str, wait: bool = True) -> None:
        self.kubectl("delete", "namespace", name, "--ignore-not-found", f"--wait={str(wait).lower()}", timeout=180)

    def wait(self, what: str, condition: str, namespace: str = "default", seconds: int = 60) -> None:
        """`kubectl wait`, with what kubectl describes of the object when the time is out."""
        try:
            options = ("-n", namespace, f"--for={condition}", f"--timeout={seconds}s")
            self.kubectl("wait", what, *options, timeout=seconds + 30)
        except ClusterError as error:
            described = self.kubectl("describe", what, "-n", namespace, check=False)[-3000:]
            raise ClusterError(f"{error}\n{described}") from error

    def import_images(self, *archives: Path) -> None:
        raise NotImplementedError

    def image(self, name: str) -> str:
        """The name under which pods of this cluster find the image that `import_images` brought as `name`."""
        return name

    def relay(self, target: str, local_port: int = 0) -> str:
        raise NotImplementedError


@dataclass
class LocalCluster(Cluster):
    """The cluster built and started on this machine."""

    layout: Layout = field(kw_only=True)
    built: Built = field(kw_only=True)
    facts: dict[str, Any] = field(kw_only=True)

    @property
    def run_dir(self) -> Path:
        return self.layout.run

    @property
    def audit_log(self) -> Path:
        return self.layout.audit_log

    @property
    def proxy_url(self) -> str:
        """HTTP proxy on the host's loopback that reaches every pod, Service and cluster name: httpx.Client(proxy=…)."""
        return f"http://127.0.0.1:{self.facts['proxy_port']}"

    @property
    def binaries(self) -> Path:
        return self.built.binaries

    def environment(self) -> dict[str, str]:
        """For child processes that talk to this cluster: kubeconfig, and kubectl and helm first on PATH."""
        path = f"{self.binaries}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def helm(self, *arguments: str, timeout: float = 300) -> str:
        command = [str(self.binaries / "helm"), *arguments]
        finished = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout, env=self.environment()
        )
        if finished.returncode:
            raise ClusterError(f"'helm {' '.join(arguments)}' failed: {finished.stderr.strip()}")
        return finished.stdout

    def import_images(self, *archives: Path) -> None:
        """OCI archives into every node's containerd, nodes side by side; what a node has already costs nothing."""
        for archive in archives:
            if not Path(archive).exists():
                raise ClusterError(f"no image archive {archive}: build the images first")
        jobs = [(node, Path(archive)) for archive in archives for node in self.layout.nodes]
        with ThreadPoolExecutor(len(self.layout.nodes)) as pool:
            for job in [pool.submit(import_archive, self.built, node, archive) for node, archive in jobs]:
                job.result()

    def relay(self, target: str, local_port: int = 0) -> str:
        """Expose NAMESPACE/SERVICE:PORT, NAMESPACE/pod/NAME:PORT or HOST:PORT; it lives as long as the cluster.

        Service names resolve at every connection, so the Service may be made, or made anew, later.
        """
        address = self.resolve_target(target)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.layout.relay_socket))
            request = http.client.HTTPConnection("relay")
            request.sock = connection
            request.request("POST", "/", json.dumps({"target": address, "port": local_port}))
            response = request.getresponse()
            body = response.read()
        if response.status != http.client.OK:
            raise ClusterError(f"cannot relay {target}: {body.decode().strip()}; choose another --local-port")
        return f"http://127.0.0.1:{json.loads(body)[address]}"

    def resolve_target(self, target: str) -> str:
        path, separator, port = target.rpartition(":")
        match path.split("/") if separator and port.isdigit() else []:
            case [host] if host:
                return target
            case [namespace, service]:
                return f"{service}.{namespace}.svc.{DOMAIN}.:{port}"
            case [namespace, "pod", name]:
                return f"{self.get('pod', name, '-n', namespace)['status']['podIP']}:{port}"
        raise ClusterError(
            f"cannot relay {target!r}: write NAMESPACE/SERVICE:PORT, NAMESPACE/pod/NAME:PORT or HOST:PORT"
        )

    def static_volume(self, name: str, namespace: str, host_path: Path, claim: str = "") -> str:
        """A read-only PersistentVolume over a folder of this machine, bound to a claim; returns the claim's name.

        Nodes see the host's files as they were mounted when the cluster started, but have their own /run, and /var/log.
        """
        folder = Path(host_path).resolve()
        if not folder.is_dir():
            raise ClusterError(f"static volume {name}: {folder} is not a folder")
        if folder.is_relative_to("/run") or folder.is_relative_to("/var/log"):
            raise ClusterError(f"static volume {name}: nodes cannot see {folder}; put it outside /run and /var/log")
        claim = claim or name
        size, modes = {"storage": "1Gi"}, ["ReadOnlyMany"]
        self.apply(
            [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"{namespace}-{name}", "labels": {TEST_LABEL: "true"}},
                    "spec": {
                        "capacity": size,
                        "accessModes": modes,
                        "storageClassName": "static",
                        "persistentVolumeReclaimPolicy": "Retain",
                        "claimRef": {"namespace": namespace, "name": claim},
                        "hostPath": {"path": str(folder), "type": "Directory"},
                    },
                },
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": claim, "namespace": namespace},
                    "spec": {
                        "accessModes": modes,
                        "storageClassName": "static",
                        "volumeName": f"{namespace}-{name}",
                        "resources": {"requests": size},
                    },
                },
            ]
        )
        self.wait(f"pvc/{claim}", "jsonpath={.status.phase}=Bound", namespace)
        return claim

    def delete_static_volume(self, name: str, namespace: str, claim: str = "") -> None:
        """Remove claim and volume once no pod uses them; the folder and its files stay."""
        self.kubectl("delete", "pvc", claim or name, "-n", namespace, "--ignore-not-found")
        self.kubectl("delete", "pv", f"{namespace}-{name}", "--ignore-not-found")

    # Faults. A program is etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy or relay on
    # "control", and containerd, kubelet, kube-proxy, kube-router or gpu-plugin on a node.

    def stop_program(self, where: str, program: str, kill: bool = False) -> None:
        """End a program and keep it ended; returns when it is gone."""
        place = self._place(where)
        control.ask(place.control_socket, "kill" if kill else "stop", program)
        wait_until(
            lambda: control.ask(place.control_socket, "status")[program]["pid"] == 0,
            60,
            f"{program} on {where} stopped",
        )

    def start_program(self, where: str, program: str) -> None:
        control.start(self._place(where), program)

    def programs(self, where: str) -> dict[str, Any]:
        return control.ask(self._place(where).control_socket, "status")

    def kill_node(self, name: str) -> None:
        """A power cut: every process of the node, its pods included, dies at once."""
        self.stop_program("control", self.layout.node(name).name, kill=True)

    def start_node(self, name: str) -> None:
        """Switch a killed node on again and wait until it is Ready; its disk is as it was, its memory is not."""
        node = self.layout.node(name)
        boot = Boot(self.layout, self.built, self.facts)
        silent_since = boot.last_sign_of_life(node)
        control.enter(self.layout, self.layout, *network_of(node))
        control.start(self.layout, node.name)
        boot.containers(node)
        control.start(node, *NODE_PROGRAMS)
        boot.node_ready(node, silent_since)

    def enter(self, where: str, *command: str) -> str:
        """Run a command inside the namespaces of "control" or of a node; returns what it printed."""
        return control.enter(self.layout, self._place(where), *command)

    def log(self, where: str, program: str) -> str:
        path = self.layout.logs / ("" if where == "control" else where) / f"{program}.log"
        return path.read_text(errors="replace")

    def _place(self, where: str) -> Any:
        return self.layout if where == "control" else self.layout.node(where)


def local_cluster(name: str, options: lifecycle.Options | None = None, start: bool = True) -> LocalCluster:
    """The cluster `name`: reused if it runs, else started (or, with start=False, an error)."""
    layout = Layout(name)
    if not start and not lifecycle.state(layout):
        raise ClusterError(f"cluster {name!r} is not up: start it with `python -m tests.cluster up --name {name}`")
    built = ensure_built()
    if start:
        lifecycle.up(layout, built, options or lifecycle.Options())
    facts = lifecycle.state(layout)
    if facts is None:
        raise ClusterError(f"cluster {name!r} went down while it was being used; see {layout.logs}")
    built = Built(Path(facts["build"]))
    return LocalCluster(
        name, layout.kubeconfig, str(built.binaries / "kubectl"), layout=layout, built=built, facts=facts
    )
