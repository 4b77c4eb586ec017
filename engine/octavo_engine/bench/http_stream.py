"""One HTTP/1.1 connection that posts a request and takes its server-sent events in, with little Python per token.

The load generator shares the machine with the server it measures, so bytes go from the socket to a decoder in one
callback: no task, no line iterator and no dictionary per token.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import urlsplit

import msgspec

_MAX_ERROR_BYTES: Final = 64 * 1024


class StreamError(RuntimeError):
    """The request did not end as a stream must; the message says how."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Event).decode


class Answer(msgspec.Struct):
    """What one request got. Times are `time.perf_counter()`; `times` has one entry per message that carried text."""

    sent: float
    times: list[float] = []
    ended: float = 0.0
    output_tokens: int = 0
    """As the server counts them (`usage`); where it does not, the messages with text."""
    counted: bool = False
    """Whether the server counted them."""
    status: int = 0
    body: bytes = b""
    """Of an answer that is no stream."""
    streamed: bool = False


class Connection(asyncio.Protocol):
    """A connection that serves one request after the other. Made by `connect`."""

    def __init__(self) -> None:
        """Wait for the connection."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._lost: Exception | None = None
        self._reset()

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and self._lost is None and self._keep

    def _reset(self) -> None:
        self._answer = Answer(0.0)
        self._head = True
        self._chunked = False
        self._stream = False
        self._left = -1
        """Body bytes still to come; -1 where the length is not known."""
        self._raw = b""
        self._text = b""
        self._done = False
        self._keep = True

    async def request(self, data: bytes) -> Answer:
        """Send a whole request and return its answer. Raises StreamError, or OSError for a lost connection."""
        if self._transport is None or self._lost is not None:
            raise ConnectionResetError("the connection is closed") from self._lost
        self._reset()
        self._waiter = asyncio.get_running_loop().create_future()
        self._answer.sent = time.perf_counter()
        self._transport.write(data)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open request, unless the end of the connection is the end of its answer."""
        self._lost = exc or ConnectionResetError("the server closed the connection")
        if self._waiter is not None and not self._waiter.done():
            if not self._head and not self._chunked and self._left < 0:
                self._end()
            else:
                self._waiter.set_exception(StreamError(f"the connection broke off ({self._lost})"))

    def data_received(self, data: bytes) -> None:
        """Take bytes in."""
        if self._waiter is None or self._waiter.done():
            return
        now = time.perf_counter()
        try:
            self._take(self._raw + data if self._raw else data, now)
        except (ValueError, StreamError) as error:
            self._keep = False
            told = error if isinstance(error, StreamError) else StreamError(f"the answer cannot be read ({error})")
            self._waiter.set_exception(told)

    # --- HTTP -------------------------------------------------------------------------------------------------------
    def _take(self, data: bytes, now: float) -> None:
        self._raw = b""
        if self._head:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._raw = head
                return
            self._read_head(head)
        if not self._chunked:
            self._body(data, now)
            if self._left >= 0:
                self._left -= len(data)
                if self._left <= 0:
                    self._end()
            return
        while data:
            line, found, rest = data.partition(b"\r\n")
            size = int(line.split(b";")[0], 16) if found else 0
            if not found or len(rest) < size + 2:
                self._raw = data
                return
            self._body(rest[:size], now)
            data = rest[size + 2 :]
            if size == 0:
                self._end()
                return

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
            raise StreamError(f"the answer is no HTTP/1.1, it begins with {first[:80].decode(errors='replace')!r}")
        self._answer.status = int(status[:3])
        fields = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(b":") for x in lines)}
        self._head = False
        self._chunked = fields.get(b"transfer-encoding") == b"chunked"
        self._left = int(fields[b"content-length"]) if b"content-length" in fields else -1
        self._stream = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        self._answer.streamed = self._stream
        self._keep = fields.get(b"connection") != b"close"

    def _body(self, data: bytes, now: float) -> None:
        if not self._stream:
            if len(self._answer.body) < _MAX_ERROR_BYTES:
                self._answer.body += data
            return
        *events, self._text = (self._text + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:
                self._event(event[5:].strip(), now)
            else:
                self._fields(event, now)

    def _fields(self, event: bytes, now: float) -> None:
        """Take an event of several lines: fields such as `event:` and `id:`, comments, data in more than one line."""
        fields = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in event.split(b"\n"))]
        data = b"\n".join(value for name, value in fields if name == b"data")
        if (b"event", b"error") in fields:
            raise StreamError(f"the server ended the stream with {data[:300].decode(errors='replace')}")
        if data:
            self._event(data, now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        event = _decode(data)
        if event.error:
            raise StreamError(f"the server ended the stream with {bytes(event.error)[:300].decode(errors='replace')}")
        if event.usage is not None:
            self._answer.output_tokens = event.usage.completion_tokens
            self._answer.counted = True
        if any(choice.text or (choice.delta and choice.delta.content) for choice in event.choices):
            self._answer.times.append(now)

    def _end(self) -> None:
        answer = self._answer
        answer.ended = time.perf_counter()
        answer.output_tokens = answer.output_tokens or len(answer.times)
        if self._waiter is None or self._waiter.done():
            return
        if self._stream and not self._done:
            self._waiter.set_exception(StreamError("the stream broke off before [DONE]"))
        else:
            self._waiter.set_result(answer)


class Address(msgspec.Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        """The Host header's value."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> Address:
    """Return the address of an http URL, with or without its `/v1`. Raises ValueError with the remedy."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"'{url}' is no address to measure: give a plain http URL such as http://127.0.0.1:8000.")
    return Address(parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1"))


async def connect(address: Address) -> Connection:
    """Open a connection. Raises ConnectionError if nobody answers."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(Connection, address.host, address.port)
    except OSError as error:
        raise ConnectionError(f"Nobody answers at {address.authority} ({error.strerror}): start the server.") from error
    return connection


def request_bytes(address: Address, method: str, path: str, body: bytes = b"", api_key: str = "") -> bytes:
    """Return a whole HTTP/1.1 request."""
    head = [f"{method} {address.prefix}{path} HTTP/1.1", f"host: {address.authority}", "accept: */*"]
    if body:
        head += ["content-type: application/json", f"content-length: {len(body)}"]
    if api_key:
        head.append(f"authorization: Bearer {api_key}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body
