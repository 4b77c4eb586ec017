"""OCTAVO_TEST_KUBECONFIG: another's cluster is named, spared if it serves others, and gets images by a registry."""

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.cluster import fixture, lifecycle
from tests.cluster.cluster import LocalCluster, local_cluster
from tests.cluster.errors import ClusterError
from tests.cluster.foreign import ForeignCluster, foreign_cluster
from tests.cluster.image import Entry, Image, write_archive
from tests.cluster.layout import GROUP
from tests.cluster.pods import PORT, probe_pod

NAME = f"foreign-{os.getpid()}"  # sessions side by side must not end each other's
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"inferenceservices.{GROUP}"},
    "spec": {
        "group": GROUP,
        "names": {"kind": "InferenceService", "plural": "inferenceservices", "singular": "inferenceservice"},
        "scope": "Namespaced",
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


@pytest.fixture(scope="module")
def other() -> Iterator[LocalCluster]:
    cluster = local_cluster(NAME)
    yield cluster
    lifecycle.down(cluster.layout)


@pytest.fixture
def on_path(other: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setenv("PATH", other.environment()["PATH"])
    return other


@pytest.mark.cluster
def test_the_context_is_printed_and_pods_are_relayed(
    on_path: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_TEST_KUBECONFIG", str(on_path.kubeconfig))
    cluster = fixture.get_cluster.__wrapped__()
    assert isinstance(cluster, ForeignCluster)
    assert f"octavo-{NAME}" in capsys.readouterr().err
    cluster.apply(probe_pod("web", "default"))
    cluster.wait("pod/web", "condition=Ready")
    try:
        assert httpx.get(cluster.relay(f"default/pod/web:{PORT}")).text == "web\n"
    finally:
        cluster.close()


@pytest.mark.cluster
def test_a_cluster_that_serves_somebody_is_refused(on_path: LocalCluster) -> None:
    foreign_cluster(on_path.kubeconfig, "")
    on_path.apply(DEFINITION)
    on_path.wait(f"crd/inferenceservices.{GROUP}", "condition=Established")
    on_path.namespace("ours")
    service = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "InferenceService"}
    on_path.apply({**service, "metadata": {"name": "mine", "namespace": "ours"}})
    foreign_cluster(on_path.kubeconfig, "")
    on_path.apply({**service, "metadata": {"name": "assistant", "namespace": "default"}})
    with pytest.raises(ClusterError, match=r"no test made \(default/assistant\)"):
        foreign_cluster(on_path.kubeconfig, "")


def test_a_kubeconfig_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not exist"):
        foreign_cluster(tmp_path / "nothing", "")


class RegistryHandler(http.server.BaseHTTPRequestHandler):
    """As much of the distribution protocol as a push needs; refuses a blob that is not what its digest says."""

    blobs: ClassVar[dict[str, bytes]]
    manifests: ClassVar[dict[str, bytes]]

    def do_HEAD(self) -> None:
        self.answer(200 if self.path.rsplit("/", 1)[1] in self.blobs else 404)

    def do_POST(self) -> None:
        self.answer(202, f"http://{self.headers['Host']}/v2/upload?state=1")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/manifests/" in self.path:
            self.manifests[self.path] = body
            return self.answer(201)
        digest = self.path.rsplit("digest=", 1)[1]
        if digest != "sha256:" + hashlib.sha256(body).hexdigest():
            return self.answer(400)
        self.blobs[digest] = body
        return self.answer(201)

    def answer(self, status: int, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if location:
            self.send_header("Location", location)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silence."""


def test_images_are_pushed_to_the_registry(tmp_path: Path) -> None:
    class Handler(RegistryHandler):
        blobs: ClassVar[dict[str, bytes]] = {}
        manifests: ClassVar[dict[str, bytes]] = {}

    archive = tmp_path / "image.tar"
    write_archive(archive, [Image("octavo.test/engine:1", [Entry("file", b"content")], ["/file"])])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        registry = f"http://127.0.0.1:{server.server_port}"
        cluster = ForeignCluster("other", tmp_path / "kubeconfig", "kubectl", registry=registry)
        cluster.import_images(archive)
        cluster.import_images(archive)  # blobs that are there are not sent again
        server.shutdown()
    (path, manifest) = Handler.manifests.popitem()
    assert path == "/v2/engine/manifests/1"
    described = json.loads(manifest)
    assert {described["config"]["digest"], *(layer["digest"] for layer in described["layers"])} == set(Handler.blobs)
    assert cluster.image("octavo.test/engine:1") == f"{registry}/engine:1"
