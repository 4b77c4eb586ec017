"""The volumes of an engine pod and where its container sees them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from octavo_operator import names
from octavo_operator.api.spec import InferenceServiceSpec, Model

TMP: Final = "/tmp"
CACHE: Final = "/var/cache/octavo"
MODEL: Final = "/var/lib/octavo/model"
ADAPTERS: Final = "/var/lib/octavo/adapters"
"""Under it, the claims that adapters lie in, by a hash of the claim's name."""
ADAPTERS_CONFIG: Final = "/etc/octavo/adapters"
ADAPTERS_FILE: Final = "adapters.json"
SHM: Final = "/dev/shm"
SHM_PER_GPU: Final = "1Gi"
"""What a rank's collectives may use. It counts towards the pod's memory limit, and is half of it when unset."""


class Volume(NamedTuple):
    """One volume (`source` is the rest of its entry) and its mount in the engine container."""

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False

    def entry(self) -> dict[str, Any]:
        """Return the pod's `volumes` entry."""
        return {"name": self.name, **self.source}

    def mount(self) -> dict[str, Any]:
        """Return the container's `volumeMounts` entry."""
        return {"name": self.name, "mountPath": self.path, **({"readOnly": True} if self.read_only else {})}


def volumes(name: str, spec: InferenceServiceSpec) -> list[Volume]:
    """Return the operator's own volumes of an engine pod of the service `name`."""
    result = [
        Volume("octavo-tmp", {"emptyDir": {}}, TMP),
        Volume("octavo-cache", _cache(spec.model), CACHE),
    ]
    if (claim := _model_claim(spec.model.uri)) is not None:
        result.append(Volume("octavo-model", _claim(claim[0]), MODEL, read_only=True))
    if spec.model.adapters is not None:
        config = {"configMap": {"name": names.adapters(name)}}
        result.append(Volume("octavo-adapters", config, ADAPTERS_CONFIG, read_only=True))
    for claim_name in _adapter_claims(spec.model):
        key = names.short_hash(claim_name)
        result.append(Volume(f"octavo-adapters-{key}", _claim(claim_name), f"{ADAPTERS}/{key}", read_only=True))
    if spec.gpus > 1:
        size = f"{spec.gpus * int(SHM_PER_GPU.removesuffix('Gi'))}Gi"
        result.append(Volume("octavo-shm", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, SHM))
    return result


def model_argument(model: Model) -> str:
    """Return what `octavo serve` gets as its model: a claim becomes the folder it is mounted at."""
    claim = _model_claim(model.uri)
    return model.uri if claim is None else f"file://{MODEL}/{quote(claim[1])}".rstrip("/")


def adapter_folders(model: Model) -> dict[str, str]:
    """Return where the engine finds each adapter: a claim becomes the folder it is mounted at."""
    return {each.name: _adapter_folder(each.uri) for each in model.adapters or ()}


def _adapter_folder(uri: str) -> str:
    claim = _model_claim(uri)
    if claim is None:
        return unquote(uri.removeprefix("file://"))
    return f"{ADAPTERS}/{names.short_hash(claim[0])}/{unquote(claim[1])}".rstrip("/")


def _adapter_claims(model: Model) -> list[str]:
    found = (_model_claim(each.uri) for each in model.adapters or ())
    return sorted({claim[0] for claim in found if claim is not None})


def _model_claim(uri: str) -> tuple[str, str] | None:
    """Return (claim, path in it) of a `pvc://` URI."""
    if not uri.startswith("pvc://"):
        return None
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return claim, path.strip("/")


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}


def _cache(model: Model) -> dict[str, Any]:
    cache = model.cache
    if cache is None:
        return {"emptyDir": {}}
    if cache.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}
    if cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path.path, "type": "DirectoryOrCreate"}}
    limit = cache.empty_dir.size_limit if cache.empty_dir is not None else None
    return {"emptyDir": {"sizeLimit": limit} if limit else {}}
