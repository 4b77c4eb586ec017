"""API keys and the gateway's credential: files, read again when they change, compared in constant time."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0


class KeyFileError(ValueError):
    """The file cannot be read or holds no key; the message is one sentence with the remedy."""


def read_keys(path: Path) -> frozenset[str]:
    """Return the keys in a file (one a line, `#` begins a comment) or in a folder (a mounted Secret)."""
    try:
        if path.is_dir():
            files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name[0] != "."]
            lines = [line for file in files for line in file.read_text().splitlines()]
        else:
            lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"The key file {path} cannot be read ({error}); give a file with one key a line.") from error
    keys = frozenset(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise KeyFileError(f"The key file {path} holds no key; write one key a line.")
    if not all("!" <= character <= "~" for key in keys for character in key):
        raise KeyFileError(
            f"The key file {path} holds a key with a space or a character that is not ASCII, which no header can "
            "carry; write one key a line, of visible ASCII characters."
        )
    return keys


class KeyFile:
    """Keys that are read again when their file changes. A file that turns bad leaves the old keys in force."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the keys. Raises KeyFileError."""
        self._path = path
        self._clock = clock
        self._digests = self._read()
        self._checked = clock()
        self._broken = False

    def accepts(self, key: str) -> bool:
        """Return whether `key` is one of the keys; every key is compared, so time tells nothing."""
        self._refresh()
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found

    def _read(self) -> list[bytes]:
        return [sha256(key.encode()).digest() for key in sorted(read_keys(self._path))]

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        try:
            self._digests = self._read()
            self._broken = False
        except KeyFileError as error:
            if not self._broken:
                log.error("%s The keys read before stay in force.", error)
            self._broken = True
