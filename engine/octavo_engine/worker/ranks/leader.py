"""Rank 0's hold on its followers: it starts them, tells them what to do, and knows when one has ended.

A rank that ends leaves the others in the middle of a sum that nobody completes, on a device that cannot be asked to
stop waiting. So nothing is repaired: a thread watches the processes, the loop is told with its next turn why the
engine stops, and where the loop itself waits for the device the thread ends the process in its place. Followers are
killed by the kernel when rank 0 ends (`worker.parent`).

A step that fails on all ranks alike, behind equally many calls of the communicator's, is a failed step and no more.
One that fails on some ranks only has left the others waiting, or apart: that ends all, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import zmq

from octavo_engine.ipc import signals
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.executor import ExecutorError
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.ranks.channel import LeaderChannel
from octavo_engine.worker.ranks.messages import (
    Begin,
    DropAdapter,
    Leave,
    OpenAdapter,
    RankBegun,
    RankConfig,
    RankEnds,
    RankFailedStep,
    RankOpened,
    ToFollower,
    ToLeader,
)

COMMAND: Final = ("-m", "octavo_engine.worker.ranks")
"""What the interpreter is to run as a follower."""
NOTICE_SECONDS: Final = 2.0
"""For the loop to find out by itself why the engine stops, before the watching thread ends the process."""
APART_SECONDS: Final = 5.0
"""For a step that failed on one rank to fail on the others as well. They are at most a sum apart."""
ENDING_SECONDS: Final = 1.0
"""For the end of a process to be known, which fails the steps of others a moment before."""
LEAVE_SECONDS: Final = 5.0
LAST_WORDS_SECONDS: Final = 0.5
_TICK_MILLISECONDS: Final = 250


class RankError(ExecutorError):
    """A rank has ended, or computes something else than the others: none can go on."""


class RankedAdapter(NamedTuple):
    """An adapter that every rank has opened: rank 0's own, and the number the others know it by."""

    own: OpenedAdapter
    number: int
    digest: str


class Ranks:
    """Ranks 1 to size - 1, from their start to their end."""

    def __init__(
        self,
        config: EngineConfig,
        give_up: Callable[[Exception], None],
        command: Sequence[str] = COMMAND,
        device: Literal["cuda", "cpu"] = "cuda",
    ) -> None:
        """Start the followers, which load while rank 0 does. Call it from the main thread: they die with it.

        `give_up` ends this process with a reason; it is called on the watching thread if nobody has asked `check` for
        the reason within NOTICE_SECONDS of it. `command` is what the interpreter is to run as a follower, `device` the
        kind its share is on.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Start ranks from the main thread: they die with the thread that started them.")
        self.size = config.tensor_parallel_size
        self._give_up = give_up
        self._channel = LeaderChannel(Path(config.socket_folder), self.size)
        self._news = threading.Condition()
        self._begun: set[int] = set()
        self._failed: dict[int, dict[int, RankFailedStep]] = {}
        """Of each step that failed on followers, what they said of it."""
        self._failed_since: dict[int, float] = {}
        self._settling = -1
        """The step that rank 0 failed in and waits for the followers to have failed in."""
        self._passed = -1
        self._opened: dict[int, dict[int, RankOpened]] = {}
        self._last_words: dict[int, str] = {}
        self._next_adapter = 0
        self._fault: RankError | None = None
        self._told = threading.Event()
        self._leaving = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._processes = {
            rank: _spawn(RankConfig(config, rank, self.size, os.getpid(), device), command)
            for rank in range(1, self.size)
        }
        self._watch = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._watch.start()

    # --- for the loop and the runner ----------------------------------------------------------------------------
    def send(self, message: ToFollower) -> None:
        """Tell all followers, without waiting for them."""
        self._channel.send(message)

    def check(self) -> None:
        """Raise RankError if the ranks cannot go on."""
        if self._fault is not None:
            self._told.set()
            raise self._fault

    def begin(self, begin: Begin) -> None:
        """Have every follower allocate its cache and get ready, as rank 0 does meanwhile: they may need each other."""
        self.send(begin)

    def wait_begun(self) -> None:
        """Wait until every follower is ready for steps. Raises RankError if one has ended instead."""
        self._wait(lambda: len(self._begun) == self.size - 1)

    def passed(self, number: int) -> None:
        """Note that rank 0 has computed a step. Raises RankError if the ranks cannot go on."""
        with self._news:
            self._passed = number
        self.check()

    def settle(self, error: StepError) -> None:
        """Return once every rank has failed in a step where rank 0 did: behind as many of the communicator's calls.

        Raises RankError if one has ended, has failed elsewhere, or goes on. Only rank 0 reads results: where that
        failed, all ranks have computed the step.
        """
        number = error.number
        if error.calls is None:
            self.passed(number)
            return
        with self._news:
            self._settling = number
        everywhere = self._wait(lambda: len(self._failed.get(number, {})) == self.size - 1, APART_SECONDS)
        own = RankFailedStep(0, number, error.calls, error.reason)
        with self._news:
            said = [own, *self._failed.get(number, {}).values()]
        if not everywhere or len({each.calls for each in said}) > 1:
            # Where another rank has ended, that is why.
            self._wait(lambda: False, ENDING_SECONDS)
            with self._news:
                self._apart(said[-1] if everywhere else own)
            self.check()
        with self._news:
            self._settling = -1
            del self._failed[number], self._failed_since[number]

    def open_adapter(self, folder: Path, open_own: Callable[[Path], OpenedAdapter]) -> RankedAdapter:
        """Open an adapter on every rank, on any one thread. Raises what rank 0's opening raises, or
        UnsupportedModelError if another rank cannot open it, or finds another in the folder.
        """
        number, self._next_adapter = self._next_adapter, self._next_adapter + 1
        self._opened[number] = {}
        self.send(OpenAdapter(number, str(folder)))
        try:
            own = open_own(folder)
            self._wait(lambda: len(self._opened[number]) == self.size - 1)
            _check_same(folder, own, list(self._opened[number].values()))
        except Exception:
            self.send(DropAdapter(number))
            raise
        finally:
            del self._opened[number]
        return RankedAdapter(own, number, own.digest)

    def close(self) -> None:
        """Have the followers leave, and end those that do not. Nothing is watched any more."""
        self._leaving.set()
        os.eventfd_write(self._wake, 1)
        self._watch.join()
        self.send(Leave())
        deadline = time.monotonic() + LEAVE_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._channel.close()
        os.close(self._wake)

    def _wait(self, done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `done`, at most for `seconds`; return whether it is. Raises RankError if that never can be."""
        with self._news:
            met = self._news.wait_for(lambda: self._fault is not None or done(), seconds)
        self.check()
        return met

    # --- the watching thread ------------------------------------------------------------------------------------
    def _run(self) -> None:
        files = {os.pidfd_open(process.pid): rank for rank, process in self._processes.items()}
        poller = zmq.Poller()
        for source in (self._channel.up, self._wake, *files):
            poller.register(source, zmq.POLLIN)
        while self._fault is None and not self._leaving.is_set():
            ready = dict(poller.poll(_TICK_MILLISECONDS))
            self._receive()
            ended = [files[source] for source in ready if isinstance(source, int) and source in files]
            with self._news:
                if ended and not self._leaving.is_set():
                    self._end(ended[0])
                self._find_apart()
        for file in files:
            os.close(file)
        if self._fault is not None and not self._told.wait(NOTICE_SECONDS) and not self._leaving.is_set():
            self._give_up(self._fault)

    def _receive(self) -> None:
        messages = self._channel.received()
        if messages:
            with self._news:
                for message in messages:
                    self._take(message)
                self._news.notify_all()

    def _take(self, message: ToLeader) -> None:
        match message:
            case RankBegun(rank):
                self._begun.add(rank)
            case RankFailedStep(rank, number):
                self._failed.setdefault(number, {})[rank] = message
                self._failed_since.setdefault(number, time.monotonic())
            case RankOpened(rank, number) if number in self._opened:
                self._opened[number][rank] = message
            case RankEnds(rank, detail):
                self._last_words[rank] = detail

    def _end(self, rank: int) -> None:
        """Say why a follower has ended. What it said last may come a moment after its end."""
        code = self._processes[rank].wait()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while code > 0 and rank not in self._last_words and time.monotonic() < deadline:
            self._channel.up.poll(_TICK_MILLISECONDS)
            for message in self._channel.received():
                self._take(message)
        why = f"killed by signal {-code}" if code < 0 else self._last_words.get(rank, f"exit code {code}")
        self._set_fault(f"Rank {rank} of {self.size} ended ({why.removesuffix('.')}): the engine stops.")

    def _find_apart(self) -> None:
        """Find a step that a follower failed in while rank 0 did not, or does not find that out."""
        for number, since in self._failed_since.items():
            patience = ENDING_SECONDS if number <= self._passed else APART_SECONDS
            if number != self._settling and time.monotonic() - since > patience:
                self._apart(next(iter(self._failed[number].values())))
                return

    def _apart(self, failed: RankFailedStep) -> None:
        self._set_fault(
            f"Rank {failed.rank} of {self.size} failed in step {failed.number} otherwise than the other ranks "
            f"({failed.detail.removesuffix('.')}): the engine stops."
        )

    def _set_fault(self, text: str) -> None:
        """Keep the first reason. The lock is held."""
        self._fault = self._fault or RankError(text)
        self._news.notify_all()


def _spawn(config: RankConfig, command: Sequence[str]) -> subprocess.Popen[bytes]:
    # -P: the working folder is no place to import from.
    with signals.held_back():
        process = subprocess.Popen([sys.executable, "-P", *command], stdin=subprocess.PIPE, close_fds=True)
    assert process.stdin is not None
    try:
        with process.stdin:
            process.stdin.write(msgspec.json.encode(config))
    except BrokenPipeError:
        pass  # one that died at once is noticed by whoever watches the processes, as any other death is
    return process


def _check_same(folder: Path, own: OpenedAdapter, others: Sequence[RankOpened]) -> None:
    for other in others:
        if other.error:
            raise UnsupportedModelError(f"Rank {other.rank} cannot read the adapter in {folder}: {other.error}")
        if other.digest != own.digest:
            raise UnsupportedModelError(
                f"The adapter in {folder} was changed while it was read (rank {other.rank} found another): load it "
                "again."
            )
