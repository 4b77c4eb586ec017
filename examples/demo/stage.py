"""The demo's steps. Each can be run again: what is there already is found, not made twice."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images import build as images
from images import layers
from rich.console import Console
from tests.cluster import lifecycle
from tests.cluster.cluster import LocalCluster, local_cluster
from tests.cluster.errors import ClusterError
from tests.cluster.layout import Layout
from tests.cluster.leftovers import leftovers

from examples.demo import chat

CLUSTER = "demo"
RELEASE = "octavo"
SYSTEM_NAMESPACE = "octavo-system"
NAMESPACE = "demo"
SERVICE = "assistant"
REPOSITORY = Path(__file__).resolve().parents[2]
MANIFEST = REPOSITORY / "examples/assistant.yaml"
QUESTION = "What is the capital of France? Answer with one word."

console = Console(stderr=True, highlight=False, soft_wrap=True)


class DemoError(Exception):
    """Shown to a person as it is."""


def up() -> None:
    """Bring up cluster, operator and service, print the model's answer and how to go on."""
    with _alone():
        _up()


def remains() -> str:
    """Say what an interrupted demo has left."""
    if leftovers(CLUSTER):
        return "its cluster still runs: `make demo` goes on from there, `make demo-down` removes it"
    return "nothing of it is left running"


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the demo's lock; a second one waits for the first and then finds all of it there."""
    lock = layers.cache_folder() / "demo.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _detail("another make demo is at work: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _up() -> None:
    began = time.monotonic()
    _title("cluster: a real Kubernetes of two nodes on this machine")
    cluster = local_cluster(CLUSTER)
    _title("images: the product's own, built from this checkout")
    archives = images.build(list(images.IMAGES), layers.cache_folder() / "images", say=_detail)
    _detail("importing them into the nodes")
    cluster.import_images(*archives)
    _title("operator: helm install")
    install_operator(cluster)
    _title(f"service: kubectl apply -f {MANIFEST.relative_to(REPOSITORY)}")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(MANIFEST))
    wait_ready(cluster, NAMESPACE, SERVICE)
    url = cluster.relay(f"{NAMESPACE}/{SERVICE}:8000") + "/v1"
    _title(f"chat: {QUESTION}")
    answer = chat.ask(url, SERVICE, QUESTION)
    console.print(f"demo: up in {time.monotonic() - began:.0f} s")
    _farewell(cluster, url, answer)


def down() -> None:
    """Stop the demo's cluster; say what is left of it, which must be nothing."""
    layout = Layout(CLUSTER)
    lifecycle.down(layout)
    if left := leftovers(CLUSTER):
        raise ClusterError("still there after demo-down:\n" + "\n".join(left))
    console.print("demo: nothing of it is left running")


def install_operator(cluster: LocalCluster, *values: str) -> None:
    """Install or upgrade the chart with this checkout's images, and wait until the operator is available."""
    _clear_interrupted_release(cluster)
    tag = images.tag()
    settings = [f"image.tag={tag}", f"engine.image.tag={tag}", *values]
    flags = [flag for setting in settings for flag in ("--set-string", setting)]
    cluster.helm(
        "upgrade", "--install", RELEASE, str(REPOSITORY / "charts/octavo"), "--namespace", SYSTEM_NAMESPACE,
        "--create-namespace", "--wait", "--timeout", "3m", *flags,
    )  # fmt: skip


def _clear_interrupted_release(cluster: LocalCluster) -> None:
    """Remove a release whose installation was killed: Helm refuses to touch it. The CRD and the services stay."""
    releases = json.loads(cluster.helm("list", "--all", "--namespace", SYSTEM_NAMESPACE, "--output", "json"))
    if any(release["name"] == RELEASE and release["status"].startswith("pending-") for release in releases):
        _detail("an earlier helm install was interrupted: removing its remains")
        cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait", "--timeout", "2m")


def wait_ready(cluster: LocalCluster, namespace: str, name: str, *, seconds: float = 300) -> None:
    """Wait for the service's Ready condition and tell every change of what stands in the way. Raises DemoError."""
    deadline = time.monotonic() + seconds
    told = ""
    while True:
        document = cluster.get("ois", name, "-n", namespace)
        conditions = {c["type"]: c for c in document.get("status", {}).get("conditions", [])}
        ready = conditions.get("Ready", {"status": "Unknown", "reason": "Pending", "message": "not seen yet"})
        if ready["status"] == "True" and ready.get("observedGeneration") == document["metadata"]["generation"]:
            return
        if document["metadata"].get("deletionTimestamp"):
            raise DemoError(f"{name} is being deleted: wait until `kubectl get ois -n {namespace}` no longer shows it")
        state = f"{ready['reason']}: {ready['message']}"
        if state != told:
            _detail(state)
            told = state
        if time.monotonic() > deadline:
            logs = cluster.kubectl("logs", "-n", namespace, "-l", "app.kubernetes.io/component=engine", check=False)
            raise DemoError(
                f"{name} is not ready after {seconds:.0f} s: {state}\n{json.dumps(conditions)}\n{logs[-3000:]}"
            )
        cluster.kubectl("wait", f"ois/{name}", "-n", namespace, "--for=condition=Ready", "--timeout=2s", check=False)


def _farewell(cluster: LocalCluster, url: str, answer: str) -> None:
    print(answer)
    print(
        f"""
URL         {url}
KUBECONFIG  {cluster.kubeconfig}

Try next:
  curl {url}/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{SERVICE}", "messages": [{{"role": "user", "content": "{QUESTION}"}}],
         "max_tokens": 64, "temperature": 0}}'
  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.binaries}:$PATH
  kubectl get ois -n {NAMESPACE}
  kubectl get ois {SERVICE} -n {NAMESPACE} -o yaml
  .venv/bin/octavo chat {url}
  make demo-down"""
    )


def _title(text: str) -> None:
    console.print(f"[bold]== {text}")


def _detail(text: str) -> None:
    console.print(f"   {text}", markup=False)
