"""One HTTP exchange at the ASGI level: the body within its limits, the client's leaving, the answer's bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from email.message import Message
from types import TracebackType
from typing import Final, Self

from starlette import types
from starlette.types import Receive, Scope, Send

from octavo_engine import contract
from octavo_engine.server.errors import ApiError, invalid, too_large, unavailable

BODY_SECONDS: Final = 60
"""A body that has not arrived by then is given up (408)."""
PIECE_SECONDS: Final = 10
"""And so is one of which nothing has come for so long."""
STALL_SECONDS: Final = 120
"""A client that takes nothing for so long is cut off: its sequences' blocks are wanted."""
SMALL_BODY: Final = 32 * 1024
"""Bodies up to this size hold nothing of the budget, and go to the tokenising process for small ones."""
BUDGET_BYTES: Final = 2 * contract.MAX_BODY_BYTES
"""Bytes of large bodies held at the same time; others wait unread, in their senders' hands."""


def _check_content_type(header: str) -> None:
    """Raise the ApiError of a body that does not say it is JSON in UTF-8, which is all that is read."""
    content = Message()
    content["content-type"] = header
    kind, charset = content.get_content_type(), content.get_param("charset", "utf-8")
    if kind != "application/json" and not kind.endswith("+json"):
        raise invalid("The Content-Type must be application/json.", code="unsupported_content_type")
    if not isinstance(charset, str) or charset.strip().lower() not in ("utf-8", "utf8", "us-ascii"):
        raise invalid("The charset of the Content-Type must be utf-8.", code="unsupported_content_type")


def _check_encoding(header: str) -> None:
    """Raise the 415 of a body that says it is compressed: nothing here unpacks it."""
    if any(coding.strip().lower() not in ("", "identity") for coding in header.split(",")):
        raise ApiError(
            415,
            "A Content-Encoding is not supported: send the body as it is.",
            code="unsupported_content_encoding",
            headers={"accept-encoding": "identity"},
        )


class ClientGone(Exception):
    """The client has closed its connection, or takes nothing any more."""


class BodyBudget:
    """A bound on the bytes of all large bodies in memory, charged as they arrive; who waits for room goes in order.

    Bodies that grow side by side could fill the room and wait for one another for ever. So the first in line may go
    beyond the bound, alone, until its body is released: at most one body more than the bound is held.
    """

    def __init__(self, limit: int = BUDGET_BYTES) -> None:
        """Allow `limit` bytes."""
        self._free = limit
        self._waiting: deque[tuple[int, Holding, asyncio.Future[None]]] = deque()
        self._beyond: Holding | None = None

    @property
    def free(self) -> int:
        """Bytes that may still be taken; negative while one body goes beyond the bound."""
        return self._free

    def holding(self) -> Holding:
        """Return what one body holds: nothing yet."""
        return Holding(self)

    async def acquire(self, holding: Holding, size: int) -> None:
        """Wait for room for `size` more bytes of one body."""
        if holding is self._beyond or (not self._waiting and size <= self._free):
            self._take(holding, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, holding, granted)
        self._waiting.append(entry)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()
            raise

    def release(self, holding: Holding) -> None:
        """Take back all that one body holds."""
        self._free += holding.size
        holding.size = 0
        if holding is self._beyond:
            self._beyond = None
        self._grant()

    def _take(self, holding: Holding, size: int) -> None:
        self._free -= size
        holding.size += size

    def _grant(self) -> None:
        while self._waiting:
            size, holding, granted = self._waiting[0]
            if size > self._free:
                if self._beyond is not None:
                    return
                self._beyond = holding
            self._waiting.popleft()
            self._take(holding, size)
            granted.set_result(None)


class Holding:
    """The bytes of the budget that one body holds; whoever holds it releases it, once or more often."""

    def __init__(self, budget: BodyBudget) -> None:
        """Hold nothing yet."""
        self._budget = budget
        self.size = 0
        self.waiting = False
        """Whether it waits for room now."""

    async def grow_to(self, size: int) -> None:
        """Hold `size` bytes, waiting for room if need be. A small body holds nothing: it never waits."""
        if size <= SMALL_BODY:
            return
        self.waiting = True
        await self._budget.acquire(self, size - self.size)
        self.waiting = False

    def release(self) -> None:
        """Give everything back."""
        self._budget.release(self)


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
        self._error_frame: Callable[[ApiError], bytes] = ApiError.frame
        self._watch: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[object] | None = None
        self._writing_since = 0.0
        self._stall_check: asyncio.TimerHandle | None = None

    @property
    def salt(self) -> str:
        """The cache salt of the caller, as the gateway says."""
        return self.headers.get(contract.HEADER_SALT) or contract.SALT_DIRECT

    # --- The body ---
    async def read_body(self, budget: BodyBudget) -> tuple[bytes, Holding]:
        """Return the body and what it holds of `budget`, to be released. Raises ApiError or ClientGone."""
        _check_content_type(self.headers.get("content-type", "application/json"))
        _check_encoding(self.headers.get("content-encoding", ""))
        declared = self.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > contract.MAX_BODY_BYTES:
            raise too_large()
        holding = budget.holding()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._collect(holding), holding
        except TimeoutError:
            waited = holding.waiting
            holding.release()
            if waited:
                raise unavailable("Too many large requests are being read. Retry later.") from None
            raise ApiError(
                408, "The request body did not arrive in time.", code="request_timeout", headers={"connection": "close"}
            ) from None
        except BaseException:
            holding.release()
            raise

    async def _collect(self, holding: Holding) -> bytes:
        body = bytearray()
        while True:
            async with asyncio.timeout(PIECE_SECONDS):
                message = await self._receive()
            if message["type"] == "http.disconnect":
                self.client_gone = True
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > contract.MAX_BODY_BYTES:
                raise too_large()
            await holding.grow_to(len(body))
            if not message.get("more_body", False):
                return bytes(body)

    # --- The client's leaving ---
    async def __aenter__(self) -> Self:
        """Watch for the client's leaving from now on: the body has been read."""
        self._owner = asyncio.current_task()
        self._watch = asyncio.create_task(self._watch_client())
        self._check_stall()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; a cancellation that the client's leaving caused becomes ClientGone."""
        if self._watch is not None:
            self._watch.cancel()
        if self._stall_check is not None:
            self._stall_check.cancel()
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

    def _check_stall(self) -> None:
        """Look, a few times within STALL_SECONDS, whether a write waits: cheaper than a time limit on each."""
        loop = asyncio.get_running_loop()
        if self._writing_since and loop.time() - self._writing_since > STALL_SECONDS:
            self.client_gone = True
            if self._owner is not None:
                self._owner.cancel()
            return
        self._stall_check = loop.call_later(STALL_SECONDS / 8, self._check_stall)

    # --- The answer ---
    async def start(
        self, status: int, headers: Mapping[str, str], error_frame: Callable[[ApiError], bytes] = ApiError.frame
    ) -> None:
        """Send the status line and headers. `error_frame` makes the end of a stream that breaks from here on."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self.started = True
        self._error_frame = error_frame
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send a piece of the body, waiting while the client does not read. Raises ClientGone if it never does."""
        self._finished = not more
        message: types.Message = {"type": "http.response.body", "body": data, "more_body": more}
        if self._stall_check is not None:
            self._writing_since = asyncio.get_running_loop().time()
            await self._send(message)
            self._writing_since = 0.0
            return
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
            await self.write(self._error_frame(error), more=False)
        else:
            await self.respond(error.status, error.body(), {**headers, **error.headers})
