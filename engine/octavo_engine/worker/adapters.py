"""LoRA adapters by slot: opened beside the loop, used by sequences, let go once none uses them."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from octavo_engine.core.step import NO_ADAPTER
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.executable import OpenedAdapter

logger = logging.getLogger(__name__)

Open = Callable[[Path], OpenedAdapter]


class Opened(NamedTuple):
    """What became of a folder: an adapter for `slot`, or what is wrong with it."""

    slot: int
    adapter: OpenedAdapter | None = None
    error: str = ""


class AdapterTable:
    """The adapters of one engine. Everything but the opening happens on the loop's thread."""

    def __init__(self, open_folder: Open, wake: Callable[[], None]) -> None:
        """`open_folder` reads one, on a thread of this table's; `wake` is called there whenever one has been read."""
        self._open = open_folder
        self._wake = wake
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter")
        self._opened: queue.SimpleQueue[Opened] = queue.SimpleQueue()
        self._digests: dict[int, str] = {}
        self._sequences: dict[int, set[int]] = {}
        self._slot_of: dict[int, int] = {}
        self._leaving: set[int] = set()

    def load(self, slot: int, folder: Path) -> None:
        """Begin to open a folder for `slot`."""
        self._thread.submit(self._read, slot, folder)

    def opened(self) -> list[Opened]:
        """Return what has been opened since the last call, without waiting; adapters among it are loaded now."""
        found = []
        while not self._opened.empty():
            opened = self._opened.get()
            if opened.adapter is not None:
                self._digests[opened.slot] = opened.adapter.digest
                self._sequences[opened.slot] = set()
            found.append(opened)
        return found

    def refuse(self, slot: int) -> None:
        """Forget an adapter that was opened and for which there is no room."""
        del self._digests[slot], self._sequences[slot]

    def digest(self, slot: int) -> str:
        """Return the digest of a slot's adapter, "" for no adapter. Raises ValueError if it is not loaded."""
        if slot == NO_ADAPTER:
            return ""
        if slot not in self._digests or slot in self._leaving:
            raise ValueError("The adapter is not loaded.")
        return self._digests[slot]

    def begin(self, slot: int, sequences: Iterable[int]) -> None:
        """Note that sequences use a slot until they end."""
        if slot == NO_ADAPTER:
            return
        for sequence in sequences:
            self._sequences[slot].add(sequence)
            self._slot_of[sequence] = slot

    def end(self, sequence: int) -> int:
        """Note that a sequence has ended; return the slot that is to be let go now, or `NO_ADAPTER`."""
        slot = self._slot_of.pop(sequence, NO_ADAPTER)
        if slot == NO_ADAPTER:
            return NO_ADAPTER
        self._sequences[slot].discard(sequence)
        return self._leave(slot)

    def unload(self, slot: int) -> int:
        """Let a slot go once nobody uses it; return it if that is now (or it is free), otherwise `NO_ADAPTER`."""
        if slot not in self._digests:
            return slot
        self._leaving.add(slot)
        return self._leave(slot)

    def close(self) -> None:
        """Open nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _leave(self, slot: int) -> int:
        if slot not in self._leaving or self._sequences[slot]:
            return NO_ADAPTER
        self._leaving.remove(slot)
        del self._digests[slot], self._sequences[slot]
        return slot

    def _read(self, slot: int, folder: Path) -> None:
        try:
            opened = Opened(slot, self._open(folder))
        except UnsupportedModelError as error:
            opened = Opened(slot, error=str(error))
        except OSError as error:
            why = f"{error.filename or folder}: {error.strerror or error}"
            opened = Opened(
                slot, error=f"The adapter in {folder} cannot be read ({why}); see that the engine may read it."
            )
        except MemoryError:
            opened = Opened(slot, error=f"There is no memory left for the adapter in {folder}; unload another first.")
        except Exception as error:
            # Whoever asked need not have the log: what it says at length is said there in short.
            logger.exception("The adapter in %s cannot be read", folder)
            why = f"{type(error).__name__}: {error}"
            opened = Opened(slot, error=f"The adapter in {folder} cannot be read ({why}); save it again with PEFT.")
        self._opened.put(opened)
        self._wake()
