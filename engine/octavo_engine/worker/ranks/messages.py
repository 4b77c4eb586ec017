"""What rank 0 and its followers say to one another, beside what their devices do."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from octavo_engine.core.step import StepPlan
from octavo_engine.ipc.config import EngineConfig

NO_ADAPTER_NUMBER: Final = -1


class RankConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a follower is told at its start, over its standard input. It must not outlive `parent_pid`.

    device: the kind its share is on; of GPUs it takes the one whose number is its rank.
    """

    engine: EngineConfig
    rank: int
    size: int
    parent_pid: int
    device: Literal["cuda", "cpu"] = "cuda"


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Allocate the cache and get ready for steps: what rank 0 has settled on, for all ranks alike.

    num_blocks, host_places: of the KV cache and of the host tier, per KV group.
    """

    num_blocks: tuple[int, ...]
    host_places: tuple[int, ...]
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    plans_in_flight: int


class Execute(msgspec.Struct, frozen=True, tag="execute"):
    """Execute a plan."""

    plan: StepPlan


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Compute one token of nobody's."""


class OpenAdapter(msgspec.Struct, frozen=True, tag="open"):
    """Read a folder's adapter beside the steps, and keep it as `number`."""

    number: int
    folder: str


class SetAdapter(msgspec.Struct, frozen=True, tag="set"):
    """Make `slot` mean an adapter that was opened, or nothing (NO_ADAPTER_NUMBER)."""

    slot: int
    number: int


class DropAdapter(msgspec.Struct, frozen=True, tag="drop"):
    """Forget an adapter that was opened and that no slot will mean."""

    number: int


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End."""


ToFollower = Begin | Execute | Probe | OpenAdapter | SetAdapter | DropAdapter | Leave


class RankBegun(msgspec.Struct, frozen=True, tag="begun"):
    """`Begin` is done."""

    rank: int


class RankFailedStep(msgspec.Struct, frozen=True, tag="step"):
    """A step raised, behind `calls` of the communicator's calls. The follower goes on with the next."""

    rank: int
    number: int
    calls: int
    detail: str


class RankOpened(msgspec.Struct, frozen=True, tag="opened"):
    """An adapter is open, with this digest, or could not be: `error`."""

    rank: int
    number: int
    digest: str = ""
    error: str = ""


class RankEnds(msgspec.Struct, frozen=True, tag="ends"):
    """The follower cannot go on; its process ends after this message."""

    rank: int
    detail: str


ToLeader = RankBegun | RankFailedStep | RankOpened | RankEnds
