"""A file that says which adapters are served, followed while the server runs: what a mounted ConfigMap holds.

Level by level: each look compares what the file wants with what is served, and loads or unloads the difference. What
cannot be loaded is tried again, less and less often. Adapters that the admin port loaded are nobody's business here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from octavo_engine.ipc.transport import PeerGone
from octavo_engine.server.adapters import Adapters
from octavo_engine.server.errors import ApiError

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
MOST_WAIT_SECONDS: Final = 60.0


class AdapterFileError(ValueError):
    """The file cannot be read; the message is one sentence with the remedy."""


def read_adapters(path: Path) -> dict[str, str]:
    """Return the folder of each name. Raises AdapterFileError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise AdapterFileError(
            f'The adapters\' file {path} cannot be read ({error}); write {{"NAME": "/its/folder"}}.'
        ) from error


class Failure(NamedTuple):
    """A folder that could not be loaded, and when it is tried again."""

    folder: str
    wait: float
    again: float


class AdapterFile:
    """Keeps the served adapters as the file has them."""

    def __init__(
        self,
        path: Path,
        adapters: Adapters,
        base_names: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow `path`. Raises AdapterFileError if it cannot be read now."""
        self._path = path
        self._adapters = adapters
        self._base_names = base_names
        self._clock = clock
        self._wanted = read_adapters(path)
        self._served: dict[str, str] = {}
        self._failures: dict[str, Failure] = {}
        self._broken = False

    async def follow(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read the file, and make what is served what it wants. A file that turns bad changes nothing."""
        self._read()
        # What a new engine could not read again is served no more.
        self._served = {name: folder for name, folder in self._served.items() if self._adapters.has(name)}
        for name in [name for name, folder in self._served.items() if self._wanted.get(name) != folder]:
            self._unload(name)
        for name, folder in self._wanted.items():
            if name not in self._served and self._due(name, folder):
                await self._load(name, folder)

    def _read(self) -> None:
        try:
            self._wanted = read_adapters(self._path)
            self._broken = False
        except AdapterFileError as error:
            if not self._broken:
                log.error("%s The adapters stay as they are.", error)
            self._broken = True

    def _due(self, name: str, folder: str) -> bool:
        failure = self._failures.get(name)
        return failure is None or failure.folder != folder or self._clock() >= failure.again

    async def _load(self, name: str, folder: str) -> None:
        try:
            await self._adapters.load(name, folder, self._base_names)
        except (ApiError, PeerGone) as error:
            before = self._failures.get(name)
            first = before is None or before.folder != folder
            wait = LOOK_SECONDS if before is None or first else min(before.wait * 2, MOST_WAIT_SECONDS)
            self._failures[name] = Failure(folder, wait, self._clock() + wait)
            if first:
                log.error("The adapter '%s' of %s cannot be loaded, and is tried again: %s", name, self._path, error)
            return
        self._failures.pop(name, None)
        self._served[name] = folder

    def _unload(self, name: str) -> None:
        """Offer a name no more; nobody waits here for its last request."""
        del self._served[name]
        try:
            self._adapters.unload(name)
        except (ApiError, PeerGone) as error:
            log.warning("The adapter '%s' was gone before it was unloaded: %s", name, error)
