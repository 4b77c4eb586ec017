"""The messages between the API process and the engine process (msgspec structs, MessagePack on the wire).

One direction each: `ToEngine` down, `ToServer` up. A request is named by the API process (`request`, unique for the
process's life); its choices are `0 … n - 1`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are drawn.

    Validated by the API process; `seed` is always set (drawn there if the client sent none).
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    """How many alternatives are told beside each token's log-probability (`scores.py`); -1: nothing is."""
    grammar: str = ""
    """What the text must be like, as llguidance writes it; "" for anything. The API process has compiled it once."""


class StopRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a sequence ends by its tokens. Stop strings are the API process's own business (it aborts)."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """A new request: `prompt` is int32 token ids, little endian; `age_seconds` how long ago it arrived.

    From `prompt_logprobs` 0 on the first choice tells the log-probability of each prompt token but the first, and so
    many alternatives. `adapter` is the slot of a loaded adapter, -1 for none. A `pooled` request ends with its prompt
    (`max_tokens` is 0) and gives the prompt's embedding.
    """

    request: int
    prompt: bytes
    sampling: SamplingParams
    stop: StopRule
    n: int = 1
    priority: int = 0
    salt: str = ""
    age_seconds: float = 0.0
    prompt_logprobs: int = -1
    adapter: int = -1
    pooled: bool = False


class Abort(msgspec.Struct, frozen=True, tag="abort", omit_defaults=True):
    """End choices of a request now; `choice` -1 is all of them. Unknown ones are no error."""

    request: int
    choice: int = -1


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Read a LoRA adapter's folder into a slot that is free; `AdapterLoaded` or `AdapterFailed` answers."""

    slot: int
    folder: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Free a slot once the requests that have its adapter have ended; `AdapterUnloaded` answers then.

    No request may name it any more.
    """

    slot: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Leave the loop and exit 0."""


ToEngine = Submit | Abort | LoadAdapter | UnloadAdapter | Shutdown


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Loading: a stage a person understands, and how far (0 to 1)."""

    stage: str
    fraction: float


class Embeddings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model's embeddings are: vectors of `width` numbers.

    They may be shortened to `lengths` (any, if none are listed) if the model was trained for that. `refusal`: why there
    are none, a sentence.
    """

    width: int = 0
    shortens: bool = False
    lengths: tuple[int, ...] = ()
    refusal: str = ""


class Loaded(msgspec.Struct, frozen=True, tag="loaded", omit_defaults=True):
    """The model is loaded and the loop runs."""

    model_digest: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    quantization: str
    backend: str
    eos_token_ids: tuple[int, ...] = ()
    embeddings: Embeddings = Embeddings()


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engine's state after a step, or after an idle tick (at least one a second).

    Counters are totals since the start. `received` is the number of Submit messages taken in so far, so that the API
    process can add what it has sent and the engine has not seen. `busy_seconds`: the loop had something to do;
    `kernel_seconds`: of these, native code computed.
    """

    received: int
    time: float
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
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    static_batches: int = 0
    reserved_slots: int = 0
    host_places: int = 0
    host_blocks: int = 0
    host_saved_blocks: int = 0
    host_loaded_blocks: int = 0
    step_seconds: float = 0.0
    busy_seconds: float = 0.0
    kernel_seconds: float = 0.0


class TokensOut(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice. `finish` is "" while it goes on; `detail` explains an error.

    `started` is set once, on the first message after the sequence left the waiting queue (it may carry no token yet);
    `cached_tokens` is set with it. `prompt_logprobs` are records (`scores.py`) of the prompt's tokens from the second
    on, each once, cut over as many messages as the prompt takes steps; `logprobs` one for each of `tokens`. `pooled` is
    what a pooled request ends with: float32, little endian, not normalised.
    `unsatisfiable`: an error of the request's own making, which allows nothing that could come next.
    """

    request: int
    choice: int
    tokens: tuple[int, ...] = ()
    finish: Literal["", "stop", "length", "abort", "error"] = ""
    detail: str = ""
    stop_reason: int = -1
    started: bool = False
    cached_tokens: int = 0
    prompt_logprobs: bytes = b""
    logprobs: bytes = b""
    pooled: bytes = b""
    unsatisfiable: bool = False


class Step(msgspec.Struct, frozen=True, tag="step"):
    """What a step gave, in one message: the outputs and the state after it. Idle ticks have no outputs."""

    outputs: tuple[TokensOut, ...]
    snapshot: Snapshot


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine refused a Submit (the queue is full, or it can never fit). Nothing began."""

    request: int
    reason: Literal["queue_full", "never_fits"]
    detail: str


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """A slot's adapter may be asked for. `digest` is of its content."""

    slot: int
    digest: str


class AdapterFailed(msgspec.Struct, frozen=True, tag="adapter_failed"):
    """A slot's adapter cannot be loaded; the slot stays free. `detail` is one sentence for who asked."""

    slot: int
    detail: str


class AdapterUnloaded(msgspec.Struct, frozen=True, tag="adapter_unloaded"):
    """A slot is free."""

    slot: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start, or cannot go on; the process ends after this message."""

    detail: str


ToServer = Progress | Loaded | Step | Refused | AdapterLoaded | AdapterFailed | AdapterUnloaded | Failed
