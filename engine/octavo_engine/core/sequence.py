"""A sequence: one choice of a request, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from octavo_engine.core import digest
from octavo_engine.core.stop import StopRule


class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One progress number decides everything: a step lets `num_computed` catch up with `num_tokens`.

                |<------------- tokens (known) ------------->|<- placeholders ->|
                |<-- num_published blocks -->|               |                  |
                |<---------------- num_computed ---------------->|  (advances when a step is planned)

    Placeholders are tokens that steps in flight will sample. `epoch` counts preemptions: the result of a step planned
    in an earlier epoch still gives its tokens, but no longer speaks about blocks. `num_scored` counts the prompt tokens
    whose log-probability is planned or told (the first has none), so that each is told once whatever is computed again.
    `capacity` is the number of tokens its tables have room for. `stop_ids` are all tokens that may end it. One that is
    `pooled` ends with its prompt: it is at its limit from the start, and computed all the same.
    """

    id: int
    key: tuple[int, float, int]
    tokens: list[int]
    num_prompt_tokens: int
    stop: StopRule
    max_len: int
    adapter: int
    scores: bool
    root: bytes
    digests: list[bytes]
    stop_ids: frozenset[int] = frozenset()
    pooled: bool = False
    state: State = State.WAITING
    slot: int = -1
    tables: list[list[int]] = field(default_factory=list)
    num_computed: int = 0
    num_placeholders: int = 0
    capacity: int = 0
    num_published: int = 0
    num_expected: int = 0
    """Leading `digests` that the host tier knows to be awaited."""
    epoch: int = 0
    recompute_until: int = 0
    cached_tokens: int = -1
    num_scored: int = 1
    started: bool = False
    failed: bool = False

    @property
    def arrival(self) -> float:
        """Seconds on the caller's clock."""
        return self.key[1]

    @property
    def num_tokens(self) -> int:
        """Known tokens and placeholders."""
        return len(self.tokens) + self.num_placeholders

    @property
    def reads_cache(self) -> bool:
        """Whether a cached prefix will do: not while positions must be computed to be scored or pooled."""
        return not self.pooled and (not self.scores or self.num_scored >= self.num_prompt_tokens)

    @property
    def num_generated(self) -> int:
        """Known tokens after the prompt."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens still to be planned; none once the steps in flight will reach the sequence's limit.

        Less than none while drafts are in flight: progress counts them, `num_tokens` does not.
        """
        length = len(self.tokens) + self.num_placeholders
        return 0 if length >= self.max_len and not self.pooled else length - self.num_computed

    def name_blocks(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Return `digests`, extended to at least the first `num_blocks` blocks, all of known tokens."""
        digest.extend(self.digests, self.root, self.tokens, num_blocks, block_size)
        return self.digests
