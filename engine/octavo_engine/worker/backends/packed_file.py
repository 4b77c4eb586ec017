"""Packed weights on disk: one file a model and precision, written once, read by every engine that uses it.

    0      magic, 8 bytes
    8      length of the header, uint64
    16     header, JSON: packing version, model digest, entries, SHA-256 of the data
    4096·n data: the packed matrices, each at its entry's offset

A file is complete or absent (written beside its place, synced, renamed). One that is cut short, damaged or not what was
asked for is not used; what changed on disk since it was written is read whole once, against its SHA-256. A header is
compared with the one that is expected, byte for byte: nothing of a file is interpreted before it is known to be ours.

Engines that start together each write a file of their own and each put it in its place; whoever writes one holds a lock
on it, so that one without a lock is what an engine left that died.

It is read into memory of the engine's own, not mapped: anonymous memory comes in huge pages, a file's pages are small,
and a decode step, which reads all weights once, is bound by reading them (benchmarks/page_size.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.digest import file_sha256, read_sha256, remember_sha256
from octavo_kernels.cpu.weights import ALIGNMENT, PACKING_VERSION, aligned_bytes

_MAGIC: Final = b"OCTAVOPW"
_PAGE: Final = 4096
_PARTIAL: Final = ".partial"
_PREFIX: Final = struct.Struct("<8sQ")
_NO_DIGEST: Final = "0" * 64
_DIGEST_AT: Final = slice(-len(_NO_DIGEST) - len('"}'), -len('"}'))
"""Where the digest stands in a header: it is what comes last."""

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One packed matrix [n, k]: its layout, and where its bytes lie in the data."""

    name: str
    layout: str
    n: int
    k: int
    gate_up: bool
    offset: int
    nbytes: int


class Contents(NamedTuple):
    """What a file must hold: `model` is the digest of the checkpoint, `source` how each matrix is made from it."""

    model: str
    source: str
    entries: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return max((entry.offset + entry.nbytes for entry in self.entries), default=0)

    def description(self) -> dict[str, Any]:
        """Return what the header says of it."""
        entries = [list(entry) for entry in self.entries]
        return {"version": PACKING_VERSION, "model": self.model, "source": self.source, "entries": entries}


def place_entries(sizes: list[tuple[str, str, int, int, bool, int]]) -> tuple[Entry, ...]:
    """Return entries one after the other, each on a cache line; `sizes` is an entry without its offset."""
    entries, offset = [], 0
    for name, layout, n, k, gate_up, nbytes in sizes:
        entries.append(Entry(name, layout, n, k, gate_up, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(entries)


def open_packed(path: Path, contents: Contents) -> NDArray[np.uint8] | None:
    """Return the file's data, or None if there is no such file or it is not whole."""
    try:
        with path.open("rb") as stream:
            expected, start = _read_digest(stream, contents)
            if os.fstat(stream.fileno()).st_size != start + contents.nbytes:
                raise ValueError("it is not as long as its header says")
            if file_sha256(path, offset=start) != expected:
                raise ValueError("its data has changed since it was written")
            return _read_data(stream, start, contents.nbytes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("Packed weights in %s are not used: %s. They are packed again.", path, error)
        return None


def _read_data(stream: BufferedReader, start: int, nbytes: int) -> NDArray[np.uint8]:
    data = aligned_bytes(nbytes)
    stream.seek(start)
    if stream.readinto(data.data) != nbytes:
        raise OSError("it was cut short meanwhile")
    data.flags.writeable = False
    return data


def _read_digest(stream: BufferedReader, contents: Contents) -> tuple[str, int]:
    """Return the digest in the header, and where the data starts. Raises ValueError if it holds something else."""
    description = contents.description()
    length = len(_header(description, _NO_DIGEST))
    # A header that is longer or shorter differs in the prefix already, which states its length.
    read = stream.read(_PREFIX.size + length)
    digest = read[_DIGEST_AT].decode("latin-1")
    if read != _PREFIX.pack(_MAGIC, length) + _header(description, digest):
        raise ValueError("its header is not that of these weights")
    return digest, _data_start(length)


def write_packed(path: Path, contents: Contents, fill: Callable[[NDArray[np.uint8]], None]) -> NDArray[np.uint8]:
    """Write the file, its data made by `fill`, and return that. Raises OSError; nothing is left then.

    `fill` writes into the mapped file: what is packed is never held twice meanwhile.
    """
    description = contents.description()
    # The digest is known only at the end and has one length: the header's place is fixed before.
    length = len(_header(description, _NO_DIGEST))
    start = _data_start(length)
    with _partial_file(path) as (handle, partial):
        # Allocated, not only extended: a full disk is an error here, where a write into the mapping would be a signal.
        os.posix_fallocate(handle, 0, start + contents.nbytes)
        mapped = mmap.mmap(handle, start + contents.nbytes)
        fill(np.frombuffer(mapped, dtype=np.uint8, count=contents.nbytes, offset=start))
        mapped.flush()
        digest = read_sha256(partial, offset=start)
        os.pwrite(handle, _PREFIX.pack(_MAGIC, length) + _header(description, digest), 0)
        os.fsync(handle)
        os.replace(partial, path)
        remember_sha256(path, digest, offset=start)
        # Through the handle: another engine may have put its file there by now, or removed this one.
        with open(handle, "rb", closefd=False) as stream:
            return _read_data(stream, start, contents.nbytes)


@contextlib.contextmanager
def _partial_file(path: Path) -> Iterator[tuple[int, Path]]:
    """Yield (handle, path) of a new file beside `path`, locked for as long as it is written, gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    handle, partial = _locked_file(path)
    try:
        yield handle, partial
    finally:
        os.close(handle)
        partial.unlink(missing_ok=True)


def _locked_file(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
        # A file system without locks keeps what is abandoned on it: nobody can tell.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):
            return handle, Path(name)
        # Another engine found it between the two calls, not locked yet, and removed it.
        os.close(handle)


def _remove_abandoned(folder: Path) -> None:
    """Remove partial files nobody writes any more, and files of other packing versions, which nobody will read.

    Others do the same, or put their files in place, at the same time: what has gone is as good as removed, and what
    may not be removed stays.
    """
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.suffix == _PARTIAL:
                _remove_unlocked(path)
            elif path.suffix == ".packed" and not path.stem.endswith(f"-{PACKING_VERSION}"):
                path.unlink()


def _remove_unlocked(path: Path) -> None:
    """Remove a file that nobody holds locked. Raises OSError (BlockingIOError if somebody does)."""
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)


def _header(description: dict[str, Any], digest: str) -> bytes:
    return json.dumps({**description, "sha256": digest}, separators=(",", ":")).encode()


def _data_start(header_length: int) -> int:
    return -(-(_PREFIX.size + header_length) // _PAGE) * _PAGE
