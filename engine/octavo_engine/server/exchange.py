"""One HTTP exchange at the ASGI level: the body within its limits, the client's leaving, the answer's bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from starlette.types import Message, Receive, Scope, Send

from octavo_engine import contract
from octavo_engine.server.errors import ApiError, invalid, too_large, unavailable

BODY_SECONDS: Final = 60
"""A body that has not arrived by then is given up (408)."""
STALL_SECONDS: Final = 120
"""A client that takes nothing for so long is cut off: its sequences' blocks are wanted."""
SMALL_BODY: Final = 32 * 1024
"""Bodies up to this size are read without asking the budget, and by the tokenising process for small ones."""
BUDGET_BYTES: Final = 2 * contract.MAX_BODY_BYTES
"""Bytes of large bodies held at the same time; others wait unread, in their senders' hands."""


class ClientGone(Exception):
    """The client has closed its connection, or takes nothing any more."""


class BodyBudget:
    """A bound on the bytes of all large bodies in memory; who waits for room is served in order."""

    def __init__(self, limit: int = BUDGET_BYTES) -> None:
        """Allow `limit` bytes."""
        self._free = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        """Bytes that may still be taken."""
        return self._free

    async def acquire(self, size: int) -> None:
        """Wait for room for `size` bytes."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            else:
                self._waiting.remove(entry)
                self.release(0)
            raise

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, granted = self._waiting.popleft()
            self._free -= wanted
            granted.set_result(None)


class Exchange:
    """A request and its answer. As a context manager it ends what waits for the client when the client leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap an ASGI call."""
        self._receive = receive
        self._send = send
        self.headers: Mapping[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.client_gone = False
        self.started = False
        self._finished = False
        self._watch: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[object] | None = None

    # --- The body ---
    async def read_body(self, budget: BodyBudget) -> tuple[bytes, int]:
        """Return the body and the bytes of `budget` to release. Raises ApiError or ClientGone."""
        kind = self.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise invalid("The Content-Type must be application/json.", code="unsupported_content_type")
        declared = self.headers.get("content-length", "")
        size = int(declared) if declared.isascii() and declared.isdigit() else contract.MAX_BODY_BYTES
        if size > contract.MAX_BODY_BYTES:
            raise too_large()
        held = size if size > SMALL_BODY else 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if held:
                    await budget.acquire(held)
        except TimeoutError:
            raise unavailable("Too many large requests are being read. Retry later.") from None
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._collect(), held
        except TimeoutError:
            budget.release(held)
            raise ApiError(
                408, "The request body did not arrive in time.", code="request_timeout", headers={"connection": "close"}
            ) from None
        except BaseException:
            budget.release(held)
            raise

    async def _collect(self) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.client_gone = True
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > contract.MAX_BODY_BYTES:
                raise too_large()
            if not message.get("more_body", False):
                return bytes(body)

    # --- The client's leaving ---
    async def __aenter__(self) -> Self:
        """Watch for the client's leaving from now on: the body has been read."""
        self._owner = asyncio.current_task()
        self._watch = asyncio.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; a cancellation that the client's leaving caused becomes ClientGone."""
        if self._watch is not None:
            self._watch.cancel()
        if self.client_gone and isinstance(error, asyncio.CancelledError) and self._owner is not None:
            self._owner.uncancel()
            raise ClientGone from None

    async def _watch_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                # A server also says "disconnected" once the answer is complete.
                if self._finished:
                    return
                self.client_gone = True
                if self._owner is not None:
                    self._owner.cancel()
                return

    # --- The answer ---
    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line and headers."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send a piece of the body, waiting while the client does not read. Raises ClientGone if it never does."""
        self._finished = not more
        message: Message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole JSON answer."""
        await self.start(status, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        await self.write(body, more=False)

    async def fail(self, error: ApiError, headers: Mapping[str, str]) -> None:
        """End the exchange with an error: an answer of its own, or a last frame if the stream has begun."""
        if self.started:
            await self.write(error.frame(), more=False)
        else:
            await self.respond(error.status, error.body(), {**headers, **error.headers})
