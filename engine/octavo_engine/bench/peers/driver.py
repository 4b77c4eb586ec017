"""A peer's process: its own interpreter, one of the scripts in `drivers/`, JSON lines both ways."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.point import Timing
from octavo_engine.bench.workload import Item

_SCRIPT: Final = Path(__file__).parent / "drivers" / "drive.py"
_END_SECONDS: Final = 30.0


class Answer(msgspec.Struct, frozen=True):
    """A line of the driver's (see drivers/drive.py). `event` is ready, result or error."""

    event: str
    versions: dict[str, str] = {}
    seconds: float = 0.0
    output_tokens: int = 0
    first_token_seconds: float | None = None
    decode_tokens: int = 0
    detail: str = ""


def read_answer(line: str, title: str, log: Path) -> Answer:
    """Return what a driver's line says. Raises PeerError for its end, for an error, for anything else."""
    if not line:
        raise PeerError(f"{title} ended before it answered (see {log}).")
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except msgspec.DecodeError as error:
        raise PeerError(f"{title} answered '{line.strip()[:80]}', which is no answer (see {log}).") from error
    if answer.event == "error":
        raise PeerError(f"{title} failed: {answer.detail[:300].rstrip('.')} (see {log}).")
    return answer


def timing(answer: Answer, items: Sequence[Item], title: str) -> Timing:
    """Return a result as a run of these items. Raises PeerError if the peer did less work than asked."""
    wanted = sum(item.max_tokens for item in items)
    if answer.output_tokens != wanted:
        raise PeerError(f"{title} gave {answer.output_tokens} tokens where {wanted} were asked for.")
    first = answer.first_token_seconds
    if not (0 < answer.seconds < math.inf and (first is None or 0 < first < answer.seconds)):
        raise PeerError(f"{title} gave times that cannot be: {answer.seconds} s, the first token after {first} s.")
    return Timing(
        seconds=answer.seconds,
        prompt_tokens=sum(len(item.prompt) for item in items),
        output_tokens=answer.output_tokens,
        decode_tokens=answer.decode_tokens,
        first_token_seconds=answer.first_token_seconds,
    )


def cannot_start(title: str, environment: Environment, error: OSError) -> PeerError:
    """Return the error of a peer whose program is not there, or cannot be run, though it was installed."""
    remedy = f"remove {environment.folder} and run again with --install."
    return PeerError(f"{title} cannot be started: {error.strerror}; {remedy}")


class DriverProcess:
    """A loaded peer that runs one workload after the other; a context manager that ends it."""

    def __init__(
        self,
        title: str,
        environment: Environment,
        module: str,
        settings: Mapping[str, Any],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and wait until it has loaded. Raises PeerError."""
        self.title = title
        self._log = environment.folder / "run.log"
        try:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [environment.python, _SCRIPT, module, msgspec.json.encode(settings).decode()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment.variables(variables),
                    # The driver ends its group, and a peer may leave processes of its own behind.
                    start_new_session=True,
                )
        except OSError as error:
            raise cannot_start(title, environment, error) from error
        try:
            ready = self._read()
        except BaseException:
            self.close()
            raise
        self.versions = ready.versions
        self.load_seconds = ready.seconds

    def run(self, items: Sequence[Item]) -> Timing:
        """Run the items, all submitted at once. Raises PeerError."""
        requests = [{"prompt": item.prompt, "max_tokens": item.max_tokens} for item in items]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"requests": requests}).decode() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"{self.title} ended between two workloads (see {self._log}).") from error
        return timing(self._read(), items, self.title)

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        return read_answer(self._process.stdout.readline(), self.title, self._log)

    def close(self) -> None:
        """End the process, which ends by itself when its input does, and what it may have left behind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Closing flushes, and a peer that died cannot take what is left.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        # The group may be gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> DriverProcess:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.close()
