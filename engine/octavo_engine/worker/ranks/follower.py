"""A follower: loads its share of the model, then does what rank 0 says, in order, until it is told to leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from octavo_engine.core.step import StepPlan
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.ranks.channel import FollowerChannel
from octavo_engine.worker.ranks.messages import (
    NO_ADAPTER_NUMBER,
    Begin,
    DropAdapter,
    Execute,
    Leave,
    OpenAdapter,
    Probe,
    RankBegun,
    RankConfig,
    RankEnds,
    RankFailedStep,
    RankOpened,
    SetAdapter,
    ToFollower,
)
from octavo_engine.worker.sizing import StartError

IDLE_SECONDS: Final = 0.25
"""Without a message: rank 0 has no plan, or waits for a result."""

logger = logging.getLogger(__name__)


class Share(Protocol):
    """What one rank holds of a model, and how it computes its part of a step."""

    def begin(self, begin: Begin) -> None:
        """Allocate the cache and make a batch."""
        ...

    def execute(self, plan: StepPlan) -> Sequence[StepError]:
        """Run one plan, or queue it; return what is known by now to have failed, it or a plan before it."""
        ...

    def finish(self) -> Sequence[StepError]:
        """Wait for what is queued, and return what has failed of it."""
        ...

    def probe(self) -> None:
        """Compute one token of nobody's."""
        ...

    def open_adapter(self, folder: Path) -> OpenedAdapter:
        """Read a LoRA adapter, on any thread, beside steps."""
        ...

    def set_adapter(self, slot: int, adapter: Any | None) -> None:
        """Make `slot` mean an adapter, or nothing."""
        ...


Load = Callable[[RankConfig], Share]


def follow(config: RankConfig, load: Load) -> int:
    """Load a share and follow until `Leave`. Returns the exit code; what went wrong has been said to rank 0 then."""
    channel = FollowerChannel(Path(config.engine.socket_folder), config.rank)
    try:
        share = load(config)
        _Follower(config.rank, share, channel).run()
    except Exception as error:
        logger.exception("Rank %d of %d ends", config.rank, config.size)
        known = isinstance(error, StartError | UnsupportedModelError)
        channel.send(RankEnds(config.rank, str(error) if known else f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


class _Follower:
    """The state of one rank. Everything but the opening of adapters happens on one thread."""

    def __init__(self, rank: int, share: Share, channel: FollowerChannel) -> None:
        self._rank = rank
        self._share = share
        self._channel = channel
        self._opened: dict[int, OpenedAdapter] = {}
        self._opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter")

    def run(self) -> None:
        try:
            while not isinstance(message := self._next(), Leave):
                self._do(message)
        finally:
            self._opener.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> ToFollower:
        """Wait for a message. What is queued is waited for if none comes: a failure must not stay unsaid."""
        message = self._channel.receive(IDLE_SECONDS)
        if message is None:
            self._tell(self._share.finish())
            message = self._channel.receive()
        assert message is not None
        return message

    def _do(self, message: Begin | Execute | Probe | OpenAdapter | SetAdapter | DropAdapter) -> None:
        match message:
            case Execute(plan):
                self._tell(self._share.execute(plan))
            case Begin():
                self._share.begin(message)
                self._channel.send(RankBegun(self._rank))
            case Probe():
                self._share.probe()
            case OpenAdapter(number, folder):
                self._opener.submit(self._open, number, Path(folder))
            case SetAdapter(slot, number):
                self._share.set_adapter(slot, None if number == NO_ADAPTER_NUMBER else self._opened.pop(number))
            case DropAdapter(number):
                # Behind its opening, on the thread that does that.
                self._opener.submit(self._opened.pop, number, None)

    def _tell(self, failed: Sequence[StepError]) -> None:
        for error in failed:
            logger.error("A step failed", exc_info=error)
            if error.calls is not None:  # what a follower reads is nobody's
                self._channel.send(RankFailedStep(self._rank, error.number, error.calls, error.reason))

    def _open(self, number: int, folder: Path) -> None:
        try:
            self._opened[number] = adapter = self._share.open_adapter(folder)
            opened = RankOpened(self._rank, number, adapter.digest)
        except Exception as error:
            # Whatever it is, rank 0 refuses the adapter with it and all ranks go on without.
            logger.exception("The adapter in %s cannot be read", folder)
            known = isinstance(error, UnsupportedModelError)
            detail = str(error) if known else f"{type(error).__name__}: {error}"
            opened = RankOpened(self._rank, number, error=detail)
        self._channel.send(opened)
