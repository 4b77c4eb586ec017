"""A client that sees the bytes: it may send half a request, read slowly or leave, and knows how each answer ended."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec

RECEIVE_BYTES = 4096
"""Of a slow reader's window: what it does not read must wait in the server, not in the kernel."""
ANSWER_SECONDS = 120.0
"""An answer that takes longer never comes."""


class Broken(Exception):
    """The connection ended before the answer did; the message says where."""


class Answer(msgspec.Struct):
    """What was read of an answer. `error` is the code of its error, in an event or as the whole of it."""

    status: int
    body: Any = None
    """Of an answer that is no stream."""
    finish: dict[int, str] = {}
    """The finish reason by choice."""
    error: str = ""
    done: bool = False

    def fault(self, choices: int) -> str:
        """Return what the end of an answer of so many choices lacks: nothing if it was an error, or complete."""
        if self.error or self.status != 200:
            return "" if self.error else f"status {self.status} without an error object"
        missing = [choice for choice in range(choices) if choice not in self.finish]
        if missing:
            return f"choices {missing} have no finish reason, and there is no error"
        return "" if self.done else "the stream has no [DONE]"


class Wire:
    """One connection to a server on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, slow: bool = False) -> Wire:
        """Connect. Raises OSError."""
        connection = socket.socket()
        connection.setblocking(False)
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        except BaseException:
            connection.close()
            raise
        return cls(*await asyncio.open_connection(sock=connection, limit=RECEIVE_BYTES if slow else 1 << 16))

    def close(self) -> None:
        """Leave, whatever is still to come."""
        self._writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError."""
        self._writer.write(data)
        await self._writer.drain()

    async def read_some(self, size: int) -> bytes:
        """Return at most `size` bytes of whatever comes; none at its end."""
        return await self._reader.read(size)

    async def answer(self) -> Answer:
        """Read one answer to its end. Raises Broken."""
        try:
            return await self._answer()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError) as error:
            raise Broken(f"{type(error).__name__}: {error}") from error

    async def _answer(self) -> Answer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer = Answer(int(first.split(" ", 2)[1]))
        if fields.get("content-type", "").startswith("text/event-stream"):
            await self._stream(answer)
            return answer
        length = fields.get("content-length")
        raw = await (self._reader.readexactly(int(length)) if length is not None else self._reader.read())
        if fields.get("content-type", "").startswith("application/json"):
            answer.body = json.loads(raw)
            _take(answer, answer.body)
            answer.done = True
        else:
            answer.body = raw.decode()
        return answer

    async def _stream(self, answer: Answer) -> None:
        rest = b""
        async for piece in self._chunks():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                if data == b"[DONE]":
                    answer.done = True
                else:
                    _take(answer, json.loads(data))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)


def _take(answer: Answer, event: Any) -> None:
    """Note what an event, or a whole answer, says of ends."""
    if error := event.get("error"):
        answer.error = error["code"] or error["type"]
    for choice in event.get("choices", ()):
        if choice["finish_reason"] is not None:
            answer.finish[choice["index"]] = choice["finish_reason"]


def request_bytes(path: str, body: bytes | None = None, *headers: str) -> bytes:
    """Return a whole request: a POST of JSON, or a GET if there is no body."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: octavo", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def ask(port: int, path: str, body: Any = None) -> Answer:
    """Ask once, over a connection of its own. Raises Broken, OSError."""
    wire = await Wire.open(port)
    try:
        await wire.send(request_bytes(path, None if body is None else json.dumps(body).encode()))
        async with asyncio.timeout(ANSWER_SECONDS):
            return await wire.answer()
    except TimeoutError:
        raise Broken(f"no answer within {ANSWER_SECONDS:.0f} s") from None
    finally:
        wire.close()
