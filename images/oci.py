"""Write OCI image archives: layers as reproducible tar files, one archive per image (OCI image spec 1.1, image-layout).

The same files give the same bytes: entries are sorted, times and owners are zero. `ctr images import` and
`skopeo copy oci-archive:` take the result.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """One uncompressed tar on disk and its sha256 (hexadecimal)."""

    path: Path
    digest: str
    size: int


class _HashingWriter(io.RawIOBase):
    """A file that hashes what is written to it, so that a layer is read only once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb")
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self.hash.update(view)
        self.size += view.nbytes
        return self._file.write(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def write_layer(root: Path, out: Path) -> Layer:
    """Pack everything below `root` (files, folders, symbolic links) into one layer at `out`, replaced atomically."""
    partial = out.with_suffix(".partial")
    sink = _HashingWriter(partial)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            if info.islnk():  # A hard link to a file packed before: pack the bytes again, layers stand alone.
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    sink.close()
    os.replace(partial, out)
    return Layer(out, sink.hash.hexdigest(), sink.size)


def write_archive(
    out: Path,
    names: Iterable[str],
    layers: list[Layer],
    *,
    entrypoint: list[str],
    environment: Mapping[str, str],
    user: str,
    labels: Mapping[str, str],
) -> str:
    """Write an OCI archive at `out`, replaced atomically. Returns the manifest's digest (`sha256:…`).

    names: full references (`registry/repository:tag`) that the importer gives the image.
    """
    config = _json(
        {
            "architecture": ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "config": {
                "Entrypoint": entrypoint,
                "Env": [f"{key}={value}" for key, value in sorted(environment.items())],
                "User": user,
                "WorkingDir": "/tmp",
                "Labels": dict(labels),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
            "history": [{"created_by": "octavo images"} for _ in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{layer.digest}",
                    "size": layer.size,
                }
                for layer in layers
            ],
        }
    )
    described = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    index = _json(
        {
            "schemaVersion": 2,
            "manifests": [
                {
                    **described,
                    "annotations": {
                        "io.containerd.image.name": name,
                        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
                    },
                }
                for name in names
            ],
        }
    )
    partial = out.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", index)
        for blob in (config, manifest):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        for layer in {layer.digest: layer for layer in layers}.values():
            info = tarfile.TarInfo(f"blobs/sha256/{layer.digest}")
            info.size = layer.size
            with layer.path.open("rb") as file:
                tar.addfile(info, file)
    os.replace(partial, out)
    return str(described["digest"])


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
