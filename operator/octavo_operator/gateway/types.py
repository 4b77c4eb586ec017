"""What the picker knows of one endpoint, and what a policy is asked and answers. Plain values: no clock, no I/O.

An endpoint is named by its pod's UID. Its address is only where Envoy finds it: an address that another pod takes over
is another endpoint (faults.md, B56).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A pod of one InferenceService as the control plane tells of it.

    `address` is `ip:port`. `known` is whether Envoy has acknowledged a configuration that holds it: until then
    `override_host` would fall back to another host in silence. `answered_ready_at` is when its own `/ready` last said
    200, in the picker's seconds, None if it never did.
    """

    uid: str
    address: str
    ready: bool = True
    cordoned: bool = False
    terminating: bool = False
    known: bool = True
    answered_ready_at: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One scrape of an endpoint: `at` in the picker's seconds; `tick` is the engine's own time of its last step.

    `tick` is only ever compared with another tick of the same endpoint: the two clocks need not agree.
    """

    uid: str
    at: float
    running: int
    waiting: int
    total_blocks: int
    block_size: int
    tick: float
    active_blocks: int = 0


class Outcome(StrEnum):
    """How a request ended, as far as the endpoint's health is concerned."""

    DONE = "Done"
    """Answered, whatever the answer says of the request itself (a 400 is the client's)."""
    LEFT = "Left"
    """The client went away."""
    NOT_STARTED = "NotStarted"
    """Refused before it began: a full queue or a drain (`x-octavo-not-started`)."""
    FAILED = "Failed"
    """Connect failure, reset, or a 5xx of a request that may have begun."""


class Standing(IntEnum):
    """How far an endpoint can be trusted with the next request; a worse one is used only if no better one is there."""

    GOOD = 0
    FULL = 1
    """It refused a request a moment ago."""
    PROBED = 2
    """It failed, its ejection is over, and one request is finding out whether it is well again."""
    SILENT = 3
    """No news, no fresh news, or news that its requests belie."""
    EJECTED = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as the policies see it.

    `digests` name its prefix, chained, from the first unit on; `tail` counts the units behind the last digest that were
    not digested. `key` names the conversation (plain hashing and the weighted split hash it).
    """

    request_id: str
    digests: tuple[bytes, ...] = ()
    tail: int = 0
    key: bytes = b""
    streamed: bool = True


class Candidate(NamedTuple):
    """An endpoint as a policy sees it.

    `load` counts requests there now: our own in flight and, by the last sample, those of others. `soon` is how many of
    them are expected to be there still after `fleet.HORIZON_SECONDS`. `room` is its cache in tokens, 0 if unknown.
    """

    uid: str
    load: float
    soon: float
    room: int = 0


class Ranking(NamedTuple):
    """UIDs, best first, every candidate once; `reason` is a CamelCase word for the log and the metrics."""

    order: tuple[str, ...]
    reason: str
    matched_tokens: int = 0
    """Tokens of the request that the first of `order` is believed to hold."""


class Policy(Protocol):
    """Decides where a request goes. The same for the picker, the simulator and the tests; no clock, no randomness."""

    def rank(self, wanted: Wanted, candidates: tuple[Candidate, ...]) -> Ranking:
        """Order `candidates`, of which there is at least one, for `wanted`. Changes nothing."""
        ...

    def sent(self, wanted: Wanted, to: Candidate) -> None:
        """Learn that `wanted` was sent to `to`."""
        ...

    def forget(self, uid: str) -> None:
        """Drop all that is known of an endpoint that is gone."""
        ...
