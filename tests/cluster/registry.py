"""Pushes an OCI archive to a registry by the distribution protocol: each blob that is missing, then the manifests."""

import http.client
import json
import tarfile
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from .errors import ClusterError


def push(archive: Path, registry: str) -> list[str]:
    """Push every image of the archive as REGISTRY/rest-of-its-name; returns the names."""
    pushed = []
    with tarfile.open(archive) as tar:
        for descriptor in json.loads(_read(tar, "index.json"))["manifests"]:
            name = descriptor["annotations"]["io.containerd.image.name"].split("/", 1)[-1]
            repository, _, tag = name.rpartition(":")
            manifest = _read(tar, _path(descriptor["digest"]))
            parsed = json.loads(manifest)
            with_slash = registry if "://" in registry else f"https://{registry}"
            remote = Registry(with_slash, repository)
            for blob in (parsed["config"], *parsed["layers"]):
                remote.upload(tar, blob)
            remote.request("PUT", f"manifests/{tag}", manifest, {"Content-Type": descriptor["mediaType"]}, expect=201)
            pushed.append(f"{registry}/{name}")
    return pushed


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    with _open(tar, name) as file:
        return file.read()


def _open(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise ClusterError(f"{tar.name!r} holds no file {name}: it is no OCI archive")
    return file


class Registry:
    def __init__(self, url: str, repository: str) -> None:
        self.url = urlsplit(url)
        self.repository = repository

    def upload(self, tar: tarfile.TarFile, blob: dict[str, Any]) -> None:
        if self.request("HEAD", f"blobs/{blob['digest']}", expect=None) == http.client.OK:
            return
        location = urlsplit(self.started_upload())
        query = f"{location.query}&" if location.query else ""
        with _open(tar, _path(blob["digest"])) as content:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob["size"])}
            self._send("PUT", f"{location.path}?{query}digest={blob['digest']}", content, headers, expect=201)

    def started_upload(self) -> str:
        return self._send("POST", self._base("blobs/uploads/"), b"", {}, expect=202)[1]

    def request(
        self, verb: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, expect: int | None
    ) -> int:
        return self._send(verb, self._base(path), body, headers or {}, expect)[0]

    def _base(self, path: str) -> str:
        return f"{self.url.path.rstrip('/')}/v2/{self.repository}/{path}"

    def _send(
        self, verb: str, target: str, body: bytes | IO[bytes], headers: dict[str, str], expect: int | None
    ) -> tuple[int, str]:
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.netloc, timeout=60)
        try:
            connection.request(verb, target, body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if expect is not None and response.status != expect:
            reason = answer[:300].decode(errors="replace")
            raise ClusterError(f"{self.url.netloc} answered {response.status} to {verb} {target}: {reason}")
        return response.status, response.headers.get("Location", "")
