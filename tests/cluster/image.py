"""An OCI image archive written without a registry or Docker; `ctr images import` takes it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True)
class Entry:
    """One path in a layer: a file's content, a link's target, or, with neither, a folder."""

    path: str
    content: bytes | None = None
    link: str = ""
    mode: int = 0o755


@dataclass(frozen=True)
class Image:
    name: str
    entries: Sequence[Entry]
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "65532:65532"


def _header(path: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, mode  # time and owner stay 0: the same input gives the same digest
    return info


def _layer(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in entries:
            info = _header(entry.path, len(entry.content or b""), entry.mode)
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            tar.addfile(info, io.BytesIO(entry.content or b""))
    return buffer.getvalue()


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{MEDIA}.{kind}", "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _blobs(image: Image) -> tuple[dict[str, Any], list[bytes]]:
    layer = _layer(image.entries)
    layer_descriptor = _descriptor("layer.v1.tar", layer)
    environment = {"PATH": "/bin", **image.environment}
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(image.command),
                "Env": [f"{key}={value}" for key, value in environment.items()],
                "User": image.user,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [layer_descriptor],
        }
    ).encode()
    descriptor = {
        **_descriptor("manifest.v1+json", manifest),
        "annotations": {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name},
    }
    return descriptor, [layer, config, manifest]


def write_archive(path: Path, images: Iterable[Image]) -> None:
    """Write the images into one archive, all or nothing."""
    manifests, blobs = [], {}
    for image in images:
        descriptor, parts = _blobs(image)
        manifests.append(descriptor)
        blobs.update({f"blobs/sha256/{hashlib.sha256(part).hexdigest()}": part for part in parts})
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": manifests}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for name, content in files.items():
            tar.addfile(_header(name, len(content)), io.BytesIO(content))
    partial.rename(path)
