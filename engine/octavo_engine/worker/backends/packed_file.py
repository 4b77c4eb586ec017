"""Packed weights on disk: one file a model and precision, written once, read by every engine that uses it.

    0      magic, 8 bytes
    8      length of the header, uint64
    16     header, JSON: packing version, model digest, entries, SHA-256 of the data
    4096·n data: the packed matrices, each at its entry's offset

A file is complete or absent (written beside its place, synced, renamed). One that is cut short, damaged or not what was
asked for is not used; what changed on disk since it was written is read whole once, against its SHA-256.

It is read into memory of the engine's own, not mapped: anonymous memory comes in huge pages, a file's pages are small,
and a decode step, which reads all weights once, is bound by reading them (benchmarks/page_size.py).
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.digest import file_sha256, read_sha256, remember_sha256
from octavo_kernels.cpu.weights import ALIGNMENT, PACKING_VERSION, aligned_bytes

_MAGIC: Final = b"OCTAVOPW"
_PAGE: Final = 4096
_PREFIX: Final = struct.Struct("<8sQ")
_HEADER_BYTES: Final = 1 << 26
_ABANDONED_SECONDS: Final = 3600.0
"""A partial file this old belongs to an engine that died while it wrote."""

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
            status = os.fstat(stream.fileno())
            header, start = _read_header(stream.read(_PREFIX.size), stream.read)
            expected = header.pop("sha256")
            if header != contents.description() or status.st_size != start + contents.nbytes:
                raise ValueError("it holds something else")
            if file_sha256(path, offset=start) != expected:
                raise ValueError("its data has changed since it was written")
            data = aligned_bytes(contents.nbytes)
            stream.seek(start)
            if stream.readinto(data.data) != contents.nbytes:
                raise ValueError("it was cut short meanwhile")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        _log.warning("Packed weights in %s are not used: %s. They are packed again.", path, error)
        return None
    data.flags.writeable = False
    return data


def _read_header(prefix: bytes, read: Callable[[int], bytes]) -> tuple[dict[str, Any], int]:
    magic, length = _PREFIX.unpack(prefix) if len(prefix) == _PREFIX.size else (b"", 0)
    if magic != _MAGIC or length > _HEADER_BYTES:
        raise ValueError("it has no header of ours")
    header = json.loads(read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is damaged")
    return header, _data_start(length)


def write_packed(path: Path, contents: Contents, fill: Callable[[NDArray[np.uint8]], None]) -> NDArray[np.uint8]:
    """Write the file, its data made by `fill`, and return that. Raises OSError; nothing is left then.

    `fill` writes into the mapped file: what is packed is never held twice meanwhile.
    """
    description = contents.description()
    # The digest is known only at the end and has one length: the header's place is fixed before.
    length = len(_header(description, "0" * 64))
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
    written = open_packed(path, contents)
    if written is None:
        raise OSError(f"{path} could not be read back")
    return written


@contextmanager
def _partial_file(path: Path) -> Iterator[tuple[int, Path]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    partial = Path(name)
    try:
        yield handle, partial
    finally:
        os.close(handle)
        partial.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove partial files nobody writes any more, and files of other packing versions, which nobody will read."""
    for path in folder.iterdir():
        stale = path.suffix == ".packed" and not path.stem.endswith(f"-{PACKING_VERSION}")
        partial = path.suffix == ".partial" and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
        if stale or partial:
            path.unlink(missing_ok=True)


def _header(description: dict[str, Any], digest: str) -> bytes:
    return json.dumps({**description, "sha256": digest}, separators=(",", ":")).encode()


def _data_start(header_length: int) -> int:
    return -(-(_PREFIX.size + header_length) // _PAGE) * _PAGE
