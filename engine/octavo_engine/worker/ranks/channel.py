"""How rank 0 and its followers are joined: ZeroMQ over Unix sockets in the engine's own folder (mode 0700).

No high-water mark and no waiting: what is in flight is bounded by the plans in flight, and rank 0's loop must never
wait for a follower that hangs.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import msgspec
import zmq

from octavo_engine.worker.ranks.messages import ToFollower, ToLeader

_RECONNECT_MILLISECONDS: Final = 20
_LINGER_MILLISECONDS: Final = 2_000


def _address(folder: Path, rank: int) -> str:
    return f"ipc://{folder / f'rank-{rank}.sock'}"


class LeaderChannel:
    """Rank 0's end. Any thread may send; one receives."""

    def __init__(self, folder: Path, size: int) -> None:
        """Listen to ranks 1 to size - 1 and connect to them, who may come later: what is sent meanwhile waits."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToLeader] = msgspec.msgpack.Decoder(ToLeader)
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self.up = self._context.socket(zmq.PULL)
        self.up.setsockopt(zmq.RCVHWM, 0)
        self.up.bind(_address(folder, 0))
        self._downs = [self._connect(folder, rank) for rank in range(1, size)]

    def _connect(self, folder: Path, rank: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
        socket.connect(_address(folder, rank))
        return socket

    def send(self, message: ToFollower) -> None:
        """Send to every follower, in one order for all threads, without waiting for any."""
        data = self._encoder.encode(message)
        with self._lock:
            for socket in self._downs:
                socket.send(data, zmq.NOBLOCK)

    def received(self) -> list[ToLeader]:
        """Return what has arrived, without waiting."""
        messages: list[ToLeader] = []
        while int(self.up.get(zmq.EVENTS)) & zmq.POLLIN:
            messages.append(self._decoder.decode(self.up.recv(zmq.NOBLOCK)))
        return messages

    def close(self) -> None:
        """Close; nobody receives any more. What followers have not taken is dropped: they have gone."""
        with self._lock:
            for socket in (self.up, *self._downs):
                socket.close(linger=0)
        self._context.term()


class FollowerChannel:
    """A follower's end. Any thread may send; one receives."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Listen to rank 0 and connect to it."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToFollower] = msgspec.msgpack.Decoder(ToFollower)
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._down = self._context.socket(zmq.PULL)
        self._down.setsockopt(zmq.RCVHWM, 0)
        self._down.bind(_address(folder, rank))
        self._up = self._context.socket(zmq.PUSH)
        self._up.setsockopt(zmq.SNDHWM, 0)
        self._up.connect(_address(folder, 0))

    def send(self, message: ToLeader) -> None:
        """Send to rank 0, without waiting for it."""
        with self._lock:
            self._up.send(self._encoder.encode(message), zmq.NOBLOCK)

    def receive(self, seconds: float | None = None) -> ToFollower | None:
        """Wait for the next message, and at most so many seconds: None if none came.

        Without a limit one comes: when rank 0 ends, this process is killed.
        """
        if seconds is not None and not self._down.poll(int(seconds * 1000)):
            return None
        return self._decoder.decode(self._down.recv())

    def close(self) -> None:
        """Close, after the last message has been taken."""
        with self._lock:
            self._down.close(linger=0)
            self._up.close(linger=_LINGER_MILLISECONDS)
        self._context.term()
