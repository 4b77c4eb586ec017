"""The HTTP session that the operator's own client and Kopf share the rules of: identity, fence, count, pulse."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import aiohttp

from octavo_operator import metrics
from octavo_operator.kube.credentials import Credentials

_READS: Final = ("GET", "HEAD")


class WatchPulse:
    """When each watch was last opened or tried.

    Kopf reopens a watch after `WATCH_SECONDS`, after 70 s without an event or a bookmark, and after a refused
    connection. So a watch that nobody has tried to open for longer than `SILENT_SECONDS` is open and deaf.
    """

    WATCH_SECONDS: Final = 120
    SILENT_SECONDS: Final = 180

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know no watch yet."""
        self._clock = clock
        self._tried: dict[str, float] = {}

    def tried(self, path: str) -> None:
        """Remember that the watch at `path` was opened or tried now."""
        self._tried[path] = self._clock()

    def silent(self) -> list[str]:
        """Return the paths of the watches that have been silent for too long."""
        now = self._clock()
        return [path for path, at in self._tried.items() if now - at > self.SILENT_SECONDS]


def open_session(
    credentials: Credentials, fence: Callable[[], None], pulse: WatchPulse | None = None, timeout: float | None = None
) -> aiohttp.ClientSession:
    """Return a session whose every request carries the present token, and whose writes pass `fence` first.

    `timeout` is of whole requests, in seconds; Kopf sets its own per request and gets none here.
    """

    async def prepare(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if request.method not in _READS:
            fence()
        elif pulse is not None and request.url.query.get("watch"):
            pulse.tried(request.url.path)
        request.headers.update(credentials.headers())
        response = await handler(request)
        metrics.API_REQUESTS.labels(request.method, str(response.status)).inc()
        return response

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=credentials.context, limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout),
        middlewares=(prepare,),
    )
