"""Whether a server is idle and its books balance, from its metrics alone."""

from __future__ import annotations

from typing import NamedTuple

import psutil

from octavo_engine import contract
from tests.server.launch import Server

_GAUGES = (contract.REQUESTS_RUNNING.name, contract.QUEUE_DEPTH.name, contract.KV_BLOCKS.name)
_BOOKS = (contract.ADMITTED.name, contract.REQUESTS.name)


class State(NamedTuple):
    """One scrape. `ended`: sequences that began and ended, whatever their outcome."""

    running: int
    waiting: int
    active_blocks: int
    admitted: int
    ended: int

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is held."""
        return not (self.running or self.waiting or self.active_blocks)

    @property
    def settled(self) -> bool:
        """Whether, besides, whoever was admitted has ended."""
        return self.idle and self.admitted == self.ended


def state(server: Server) -> State:
    """Scrape a server."""
    found = server.metrics(*_GAUGES, *_BOOKS)
    ended = sum(
        found[f'{contract.REQUESTS.name}{{outcome="{outcome}"}}']
        for outcome in contract.OUTCOMES
        if outcome != "rejected"
    )
    return State(
        running=int(found[contract.REQUESTS_RUNNING.name]),
        waiting=int(found[contract.QUEUE_DEPTH.name]),
        active_blocks=int(found[f'{contract.KV_BLOCKS.name}{{state="active"}}']),
        admitted=int(found[contract.ADMITTED.name]),
        ended=int(ended),
    )


def resident_bytes(server: Server) -> dict[str, int]:
    """Return the resident memory of a server's processes, by role."""
    sizes = {"api": psutil.Process(server.process.pid), "engine": server.engine()}
    found = {role: process.memory_info().rss for role, process in sizes.items()}
    found["tokenisers"] = sum(process.memory_info().rss for process in server.tokenisers())
    return found
