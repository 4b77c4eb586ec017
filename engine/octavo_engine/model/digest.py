"""The model digest: SHA-256 over a checkpoint's files. It roots the prefix cache: equal digests, equal weights."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo_engine.model.files import cache_root, write_atomically

Progress = Callable[[str, float], None]
"""Called with a stage a person understands and how far it is, 0 to 1."""

_log = logging.getLogger(__name__)
_CHUNK = 8 * 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


def file_sha256(path: Path, progress: Progress | None = None, *, offset: int = 0) -> str:
    """Return the hexadecimal SHA-256 of a file, or of what follows `offset` in it.

    It is remembered in the cache by path, size, inode and change time, so that a large file is read once. A cache that
    cannot be written (a read-only root) costs the reading each time, nothing else.
    """
    if (known := _remembered(path, offset)) is not None:
        return known
    digest = read_sha256(path, progress, offset=offset)
    remember_sha256(path, digest, offset=offset)
    return digest


def _remembered(path: Path, offset: int) -> str | None:
    """Return the digest that was noted; what is none is as good as nothing, and is written anew."""
    try:
        noted = _memo(path, offset).read_text("latin-1")
    except OSError:
        return None
    return noted if _DIGEST.fullmatch(noted) else None


def remember_sha256(path: Path, digest: str, *, offset: int = 0) -> None:
    """Note a file's digest for `file_sha256`, for as long as the file does not change."""
    try:
        write_atomically(_memo(path, offset), digest.encode("ascii"))
    except OSError as error:
        # A read-only or full cache: the digest itself is right.
        _log.info("The digest of %s is not remembered (%s); it is computed again at the next start.", path, error)


def _memo(path: Path, offset: int) -> Path:
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_ino}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
    if offset:
        identity += f"\0{offset}"
    # As the file system has it: a name of bytes that are no UTF-8 is a name, too.
    return cache_root() / "digests" / hashlib.sha256(os.fsencode(identity)).hexdigest()


def read_sha256(path: Path, progress: Progress | None = None, *, offset: int = 0) -> str:
    """Read a file from `offset` on and return its hexadecimal SHA-256."""
    state, done, size = hashlib.sha256(), offset, path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(offset)
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
        state.update(os.fsencode(path.name) + b"\0" + file_sha256(path, progress).encode("ascii") + b"\0")
    return state.hexdigest()
