"""What the scheduler is told: its configuration, and a request as it is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from octavo_engine.core.step import NO_ADAPTER
from octavo_engine.core.stop import StopRule


class CacheGroup(NamedTuple):
    """One KV group: how many blocks it has, and its layers' attention window in tokens (0: full attention).

    `host_places` is the size in blocks of its tier in host memory, 0 for none.
    """

    num_blocks: int
    window: int = 0
    host_places: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Sizes and switches. `max_queue_*` bound what may wait; 0 means no bound.

    `watermark` is the share of each pool an admission leaves free while something runs, so that running sequences grow
    for a while before one must be preempted. `max_drafts` bounds the draft tokens of one row.
    """

    groups: tuple[CacheGroup, ...]
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    eos_token_ids: tuple[int, ...] = ()
    policy: Literal["continuous", "static"] = "continuous"
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    prefix_sharing: bool = True
    max_queue_requests: int = 0
    max_queue_tokens: int = 0
    watermark: float = 0.01
    max_drafts: int = 8
    max_plans_in_flight: int = 2
    layout_version: int = 1
    model_digest: str = ""
    quantization: str = "none"
    kv_dtype: str = "float32"


class BlockReason(Enum):
    """Why a waiting sequence is skipped for now."""

    GRAMMAR = "its grammar is being compiled"
    ADAPTER = "its adapter is being loaded"
    PREFIX = "a running sequence computes the same prefix"
    IN_FLIGHT = "it was preempted and a step in flight still owes it a token"


class Request(NamedTuple):
    """A request as submitted: one sequence id per choice, unique for the scheduler's life.

    `arrival` is in seconds on the caller's monotonic clock; a smaller `priority` goes first. `needs_all_positions`
    (prompt log-probabilities, echo): the first choice computes the whole prompt and scores it; it writes the cache and
    does not read it. The same holds for a `pooled` one: it ends with its prompt (`max_tokens` is 0), in an embedding.
    `blocked` holds the sequences back until `Scheduler.unblock`.
    """

    sequences: tuple[int, ...]
    prompt: tuple[int, ...]
    stop: StopRule
    arrival: float = 0.0
    priority: int = 0
    salt: str = ""
    adapter: int = NO_ADAPTER
    adapter_digest: str = ""
    needs_all_positions: bool = False
    pooled: bool = False
    blocked: BlockReason | None = None


class Refusal(NamedTuple):
    """Why a request was not taken in; nothing began. `detail` is one sentence for the client."""

    reason: Literal["queue_full", "never_fits"]
    detail: str


FinishReason = Literal["", "stop", "length", "abort", "error"]


class Event(NamedTuple):
    """What became of one sequence in a step.

    `tokens` are new ones, a stop token included as the last. `finish` is "" while it goes on; `stop_reason` is the
    stop token id that ended it (-1 for EOS and everything else). `started` is set once, on the first event after the
    sequence left the queue, together with `cached_tokens`, the prompt tokens found in the cache. `prompt_logprobs` go
    on where the last event with any ended: those of the prompt's second token come first, each comes once. `logprobs`
    are those of `tokens`, if they were asked for. `pooled` is the embedding that a pooled sequence ends with.
    """

    sequence: int
    tokens: tuple[int, ...] = ()
    finish: FinishReason = ""
    detail: str = ""
    stop_reason: int = -1
    started: bool = False
    cached_tokens: int = 0
    prompt_logprobs: bytes = b""
    logprobs: bytes = b""
    pooled: bytes = b""


class CoreSnapshot(NamedTuple):
    """The scheduler's state in numbers, named as the engine's Snapshot message names them.

    Blocks are summed over KV groups. From `prefix_hit_tokens` on they are totals since the start;
    `reserved_slots` counts the token slots reserved by contiguous allocation. `host_places` and `host_blocks` are the
    host tier's size and content now; blocks were saved to it when the cache evicted them, and loaded when a prefix hit
    them.
    """

    blocks_active: int
    blocks_cached: int
    blocks_free: int
    running: int
    waiting: int
    waiting_tokens: int
    oldest_wait_seconds: float
    prefix_hit_tokens: int
    prefix_miss_tokens: int
    preemptions: int
    recomputed_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    static_batches: int
    reserved_slots: int
    host_places: int = 0
    host_blocks: int = 0
    host_saved_blocks: int = 0
    host_loaded_blocks: int = 0
