"""Where Octavo keeps files on a machine, and how it writes them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from octavo_engine.contract import ENV_CACHE, ENV_MODELS


def cache_root() -> Path:
    """Return `$OCTAVO_CACHE`, or `${XDG_CACHE_HOME:-~/.cache}/octavo`. It need not exist.

    Raises FileNotFoundError, with the remedy, for a user without a home folder where neither variable is set.
    """
    if stated := os.environ.get(ENV_CACHE):
        return Path(stated)
    if stated := os.environ.get("XDG_CACHE_HOME"):
        return Path(stated) / "octavo"
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError:
        raise FileNotFoundError(
            f"This user has no home folder to keep a cache in: set {ENV_CACHE} to a folder that can be written."
        ) from None


def model_roots() -> tuple[Path, ...]:
    """Return the folders bundled models are looked for in: `$OCTAVO_MODELS` (read-only), then the cache."""
    stated = os.environ.get(ENV_MODELS)
    return (*((Path(stated),) if stated else ()), cache_root() / "models")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent, whatever dies in between, and whoever writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
