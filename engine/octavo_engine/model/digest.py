"""The model digest: SHA-256 over a checkpoint's files. It roots the prefix cache: equal digests, equal weights."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo_engine.model.files import cache_root, write_atomically

Progress = Callable[[str, float], None]
"""Called with a stage a person understands and how far it is, 0 to 1."""

_log = logging.getLogger(__name__)
_CHUNK = 8 * 1024 * 1024


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """Return the hexadecimal SHA-256 of a file.

    It is remembered in the cache by path, size, inode and change time, so that a large file is read once. A cache that
    cannot be written (a read-only root) costs the reading each time, nothing else.
    """
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_ino}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
    memo = cache_root() / "digests" / hashlib.sha256(identity.encode()).hexdigest()
    try:
        return memo.read_text("ascii")
    except OSError:
        digest = _read_sha256(path, status.st_size, progress)
    try:
        write_atomically(memo, digest.encode("ascii"))
    except OSError as error:
        # A read-only or full cache: the digest itself is right.
        _log.info("The digest of %s is not remembered (%s); it is computed again at the next start.", path, error)
    return digest


def _read_sha256(path: Path, size: int, progress: Progress | None) -> str:
    state, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {path.name}", done / max(size, 1))
    return state.hexdigest()


def model_digest(files: Sequence[Path], progress: Progress | None = None) -> str:
    """Return the digest of a checkpoint: names and contents of its files, in order."""
    state = hashlib.sha256(b"octavo model 1\0")
    for path in files:
        state.update(path.name.encode() + b"\0" + file_sha256(path, progress).encode("ascii") + b"\0")
    return state.hexdigest()
