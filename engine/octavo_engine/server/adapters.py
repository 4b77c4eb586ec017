"""The LoRA adapters that are served: which model name means which slot of the engine's.

An adapter is offered from the moment the engine has read it until it is asked to be unloaded; its slot is free only
once the engine has let it go. A new engine is told of all of them before it is asked for anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from octavo_engine.ipc import messages as m
from octavo_engine.server.errors import ApiError, invalid, not_found, unavailable

log = logging.getLogger(__name__)

NO_ADAPTER: Final = -1
MOST_NAME_CHARACTERS: Final = 253


@dataclass
class _Served:
    """A name's adapter. `loaded` gives the digest once this engine has read it."""

    name: str
    folder: str
    slot: int
    again: bool = False
    """Whether it was offered before, by an engine that has gone."""
    loaded: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def digest(self) -> str:
        """ "" while the engine reads it, or if it could not."""
        done = self.loaded.done() and not self.loaded.cancelled() and self.loaded.exception() is None
        return self.loaded.result() if done else ""


class Adapters:
    """The adapters of one API process."""

    def __init__(self, send: Callable[[m.ToEngine], None], most: int) -> None:
        """Begin with none. `send` speaks to the engine; `most` may be loaded at once."""
        self._send = send
        self._most = most
        self._served: dict[str, _Served] = {}
        self._leaving: dict[int, asyncio.Future[None]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that may be asked for, in the order of their loading."""
        return tuple(name for name, served in self._served.items() if served.digest)

    @property
    def settled(self) -> bool:
        """Whether everything is offered that an earlier engine offered."""
        return all(served.loaded.done() for served in self._served.values() if served.again)

    def slot(self, name: str) -> int:
        """Return the slot of a name, `NO_ADAPTER` for "". Raises ApiError: 404 if unknown, 503 while being read."""
        if not name:
            return NO_ADAPTER
        served = self._served.get(name)
        if served is None:
            raise not_found(f"The model '{name[:80]}' does not exist here.", param="model", code="model_not_found")
        if not served.digest:
            raise unavailable(f"The adapter '{name}' is still loading.")
        return served.slot

    async def load(self, name: str, folder: str, base_names: tuple[str, ...]) -> str:
        """Load a folder under a name that is not the model's own; return its digest once it is offered.

        Whoever stops waiting stops nothing. Raises ApiError (400) with what is wrong, PeerGone.
        """
        self._check(name, folder, base_names)
        served = _Served(name, folder, self._free_slot())
        self._send(m.LoadAdapter(served.slot, folder))
        self._served[name] = served
        return await asyncio.shield(served.loaded)

    def has(self, name: str) -> bool:
        """Return whether a name is offered, or being read."""
        return name in self._served

    def unload(self, name: str) -> asyncio.Future[None]:
        """Offer a name no more; what is returned is done when its last request has ended.

        Raises ApiError (404), PeerGone.
        """
        served = self._served.get(name)
        if served is None or not served.digest:
            raise not_found(f"No adapter '{name[:80]}' is loaded.", param="lora_name", code="model_not_found")
        self._send(m.UnloadAdapter(served.slot))
        del self._served[name]
        gone = self._leaving[served.slot] = asyncio.get_running_loop().create_future()
        return gone

    def _check(self, name: str, folder: str, base_names: tuple[str, ...]) -> None:
        if not 0 < len(name) <= MOST_NAME_CHARACTERS or not name.isprintable():
            raise invalid(
                f"'lora_name' must be 1 to {MOST_NAME_CHARACTERS} printable characters.", "lora_name", "invalid_value"
            )
        if name in base_names or name in self._served:
            raise invalid(f"The name '{name[:80]}' is taken: unload it first, or choose another.", "lora_name", "taken")
        if not folder.startswith("/"):
            raise invalid("'lora_path' must be a folder's absolute path.", "lora_path", "invalid_value")
        if len(self._served) + len(self._leaving) >= self._most:
            raise invalid(
                f"{self._most} adapters are loaded, which is the limit (--max-loras): unload one first.",
                "lora_name",
                "too_many_adapters",
            )

    def _free_slot(self) -> int:
        taken = {served.slot for served in self._served.values()} | self._leaving.keys()
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    # --- The engine ---
    def engine_loaded(self) -> None:
        """Tell a new engine of every adapter. Raises PeerGone."""
        for gone in self._leaving.values():
            gone.set_result(None)
        self._leaving.clear()
        for served in self._served.values():
            served.again = True
            if served.loaded.done():
                served.loaded = asyncio.get_running_loop().create_future()
            self._send(m.LoadAdapter(served.slot, served.folder))

    def handle(self, message: m.AdapterLoaded | m.AdapterFailed | m.AdapterUnloaded) -> None:
        """Take in what became of a slot."""
        if isinstance(message, m.AdapterUnloaded):
            if (gone := self._leaving.pop(message.slot, None)) is not None:
                gone.set_result(None)
            return
        served = next((served for served in self._served.values() if served.slot == message.slot), None)
        if served is None:
            log.warning("The engine speaks of slot %d, which no adapter has.", message.slot)
            return
        if isinstance(message, m.AdapterLoaded):
            log.info("Serving the adapter '%s' (%s).", served.name, served.folder)
            served.loaded.set_result(message.digest)
            return
        log.error("The adapter '%s' is not served: %s", served.name, message.detail)
        del self._served[served.name]
        served.loaded.set_exception(ApiError(400, message.detail, param="lora_path", code="invalid_value"))
        served.loaded.exception()  # whoever waits is told; after a restart nobody does
