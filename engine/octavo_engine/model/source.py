"""From what the user calls a model (`bundled://name`, a path, `file://`) to a path on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from octavo_engine.model.bundled import BUNDLED, BundledModel
from octavo_engine.model.digest import Progress, file_sha256
from octavo_engine.model.spec import UnsupportedModelError

NOT_YET_SERVED: Final = ("hf", "s3", "https", "pvc", "oci")
_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.:@-]*")
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)


class ModelNotFoundError(FileNotFoundError):
    """The model is not on this machine; the message says how to get it."""


def split_uri(source: str) -> tuple[str, str]:
    """Return (scheme, rest); a plain path has the scheme `file`."""
    match = _SCHEME.match(source)
    return (match[1].lower(), match[2]) if match else ("file", source)


def bundled_model(name: str) -> BundledModel:
    """Return the bundled model of a name. Raises ModelNotFoundError naming those there are."""
    if name not in BUNDLED:
        raise ModelNotFoundError(f"There is no bundled model '{name}'; there is: {', '.join(sorted(BUNDLED))}.")
    return BUNDLED[name]


def resolve(source: str, progress: Progress | None = None) -> Path:
    """Return the path of a model that is on this machine; nothing is downloaded.

    A bundled model's content is checked against its pinned SHA-256 (remembered, so that it is read once). Raises
    ModelNotFoundError or UnsupportedModelError.
    """
    scheme, rest = split_uri(source)
    if scheme == "bundled":
        return _resolve_bundled(bundled_model(rest), progress)
    if scheme == "file":
        return _resolve_path(unquote(rest) if source.lower().startswith("file://") else rest)
    if scheme in NOT_YET_SERVED:
        raise UnsupportedModelError(
            f"{scheme}:// models are not served yet; download the model and give its path, or use bundled://."
        )
    raise UnsupportedModelError(f"Unknown kind of model '{scheme}://'; give a path, file:// or bundled://.")


def _resolve_path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise ModelNotFoundError(f"There is no user of '{name}'; give the whole path of a model.") from None
    if path.exists():
        return path
    fetched = f"bundled:// models alone are fetched ({', '.join(f'bundled://{known}' for known in sorted(BUNDLED))})"
    if name in BUNDLED:
        raise ModelNotFoundError(f"There is no model at {path}; the bundled one is called bundled://{name}.")
    if _HUB_NAME.fullmatch(name) and path.suffix != ".gguf":
        raise ModelNotFoundError(
            f"There is no model at {path}, and nothing is fetched from the Hugging Face Hub: {fetched}. Download it, "
            f"such as with hf download {name} --local-dir FOLDER, and give the folder."
        )
    raise ModelNotFoundError(
        f"There is no model at {path}; give a GGUF file or a Hugging Face folder on this machine: {fetched}."
    )


def _resolve_bundled(model: BundledModel, progress: Progress | None) -> Path:
    path = model.find()
    if path is None:
        raise ModelNotFoundError(
            f"bundled://{model.name} is not on this machine; run: octavo pull bundled://{model.name}"
        )
    if file_sha256(path, progress) != model.gguf_sha256:
        raise UnsupportedModelError(
            f"{path} is not the pinned model (its SHA-256 differs); delete it and run: "
            f"octavo pull bundled://{model.name}"
        )
    return path
