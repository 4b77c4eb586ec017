"""How the messages travel: ZeroMQ over Unix sockets in a folder only its owner can enter, MessagePack on the wire.

Two one-way pipes, so that neither process can stall the other: `to-engine.sock` and `to-server.sock`, both bound by
the API process before it starts the engine. No high-water mark: what may be in flight is bounded by admission (down)
and by the sequences' own lengths (up), and a full pipe must never block the engine loop.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import zmq
import zmq.asyncio

from octavo_engine.ipc.messages import ToEngine, ToServer

_TO_ENGINE: Final = "to-engine.sock"
_TO_SERVER: Final = "to-server.sock"
_LINGER_MILLISECONDS: Final = 2_000
"""How long a closing endpoint waits for its last message to be taken: the engine's `Failed` must arrive."""
_SEND_TIMEOUT_MILLISECONDS: Final = 10_000


class PeerGone(Exception):
    """The other process does not take messages any more."""


def make_socket_folder() -> Path:
    """Make a new folder for the sockets, mode 0700 (`tempfile.mkdtemp`), short enough for a Unix socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    if len(str(folder / _TO_SERVER)) > 100:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp"))
    return folder


def _address(folder: Path, name: str) -> str:
    return f"ipc://{folder / name}"


class ServerEndpoint:
    """The API process's end, on its event loop. Owns the folder: removed by `close`."""

    def __init__(self, folder: Path | None = None) -> None:
        """Bind both pipes in `folder`, or in a new one."""
        self.folder = folder or make_socket_folder()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
        self._context = zmq.asyncio.Context()
        self._down: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PUSH)
        self._down.setsockopt(zmq.SNDHWM, 0)
        self._up = self._context.socket(zmq.PULL)
        self._up.setsockopt(zmq.RCVHWM, 0)
        self._down.bind(_address(self.folder, _TO_ENGINE))
        self._up.bind(_address(self.folder, _TO_SERVER))

    def send(self, message: ToEngine) -> None:
        """Send without waiting. Raises PeerGone if no engine is connected."""
        try:
            self._down.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise PeerGone("the engine process takes no messages") from error

    async def receive(self) -> ToServer:
        """Wait for the next message. Raises msgspec.DecodeError on bytes that are no message of ours."""
        return self._decoder.decode(await self._up.recv())

    def close(self) -> None:
        """Close the pipes and remove the folder: the engine has gone by now, or is killed."""
        self._down.close(linger=0)
        self._up.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)


class EngineEndpoint:
    """The engine process's end: blocking, polled by one thread; any thread may send and wake."""

    def __init__(self, folder: Path | str) -> None:
        """Connect to the pipes that the API process has bound in `folder`."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._context = zmq.Context()
        self._down = self._context.socket(zmq.PULL)
        self._down.setsockopt(zmq.RCVHWM, 0)
        self._up = self._context.socket(zmq.PUSH)
        self._up.setsockopt(zmq.SNDHWM, 0)
        self._up.setsockopt(zmq.SNDTIMEO, _SEND_TIMEOUT_MILLISECONDS)
        self._down.connect(_address(Path(folder), _TO_ENGINE))
        self._up.connect(_address(Path(folder), _TO_SERVER))
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._down, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def __enter__(self) -> Self:
        """Return the endpoint."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the endpoint."""
        self.close()

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Return all messages that have arrived, waiting at most `timeout_seconds` for the first (0: not at all)."""
        messages: list[ToEngine] = []
        if timeout_seconds > 0:
            ready = dict(self._poller.poll(max(1, int(timeout_seconds * 1000))))
            if self._woken in ready:
                os.eventfd_read(self._woken)
            if not ready:
                return messages
        # Asked for what is there: a refusal (zmq.Again) costs more than all the rest of a look into an empty pipe.
        while int(self._down.get(zmq.EVENTS)) & zmq.POLLIN:
            messages.append(self._decoder.decode(self._down.recv(zmq.NOBLOCK)))
        return messages

    def send(self, message: ToServer) -> None:
        """Send one message. Raises PeerGone if the API process has gone."""
        try:
            with self._sending:
                self._up.send(self._encoder.encode(message))
        except zmq.Again as error:
            raise PeerGone("the API process takes no messages") from error

    def wake(self) -> None:
        """End the wait of `poll`, or its next one, now. Any thread may call it, at any time."""
        with self._lock:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Close, after the last messages have been taken."""
        with self._lock:
            woken, self._woken = self._woken, -1
        if woken >= 0:
            os.close(woken)
        self._down.close(linger=0)
        self._up.close(linger=_LINGER_MILLISECONDS)
        self._context.term()
