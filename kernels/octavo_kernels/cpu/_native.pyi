"""The types of the C++ module. Arrays are C-contiguous; wrong shapes raise ValueError, wrong types TypeError."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def variants() -> list[str]:
    """Return the instruction-set variants that this machine can run, the slowest first."""

class Pool:
    """`threads` threads (the caller's is one) that run the kernels; each spins for `spin_us` at most, then sleeps.

    Every function below that takes a pool releases the GIL for its whole duration; calls on one pool take turns. The
    variant is the fastest that the machine can run, or the one that OCTAVO_CPU_ISA names; RuntimeError if it cannot.
    """

    def __init__(self, threads: int, spin_us: int = 50) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def variant(self) -> str: ...
    @property
    def seconds_inside(self) -> float:
        """Seconds that calls have spent in the kernels so far, without their waiting for one another."""

class Weight:
    """A packed weight [n, k]; `gate_up` weights hold n / 2 gate and n / 2 up features. `data` is kept, not
    copied; it should begin with a cache line (64 bytes)."""

    def __init__(self, layout: str, n: int, k: int, gate_up: bool, data: NDArray[np.uint8]) -> None: ...
    @property
    def layout(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def gate_up(self) -> bool: ...
    @property
    def features(self) -> int:
        """Columns of a product: n, or n / 2 if gated."""

    @property
    def nbytes(self) -> int: ...

def plan_packing(source: str, n: int, k: int, target: str = "") -> tuple[str, int]:
    """Return (layout, bytes) of a weight [n, k]."""

def pack_into(
    pool: Pool,
    source: str,
    planes: Sequence[NDArray[np.uint8]],
    k: int,
    target: str,
    gate_up: bool,
    out: NDArray[np.uint8],
) -> None:
    """Pack `planes`, each [rows, bytes per row] as files hold them, below each other into `out`."""

def linear(
    pool: Pool,
    x: NDArray[np.float32],
    weight: Weight,
    out: NDArray[np.float32],
    residual: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    activation: str = "silu",
) -> None:
    """out [T, features] = x · weightᵀ + bias + residual.

    Gated: activation(x · gateᵀ + bias[:features]) · (x · upᵀ + bias[features:]) + residual. activation: silu or
    gelu_tanh. residual may be out.
    """

def rms_norm(
    pool: Pool,
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    out: NDArray[np.float32],
    residual: NDArray[np.float32] | None = None,
    total: NDArray[np.float32] | None = None,
) -> None:
    """total = x + residual; out = total / sqrt(mean(total²) + eps) · weight. x, residual, out, total: [T, d]."""

def activate(
    pool: Pool,
    panels: NDArray[np.float32],
    out: NDArray[np.float32],
    activation: str = "silu",
    bias: NDArray[np.float32] | None = None,
) -> None:
    """out [T, n] = activation(gate + bias[:n]) · (up + bias[n:]) of panels [T, ⌈n / 16⌉ · 32]: 16 features of gate, the
    same of up, and so on. The bits are those of the gated product that is otherwise one call. activation: silu or
    gelu_tanh.
    """

class CacheLayout:
    """How one layer's blocks of 16 tokens lie in memory. dtype: f32, bf16 or int8 (one scale per token and head)."""

    def __init__(self, dtype: str, kv_heads: int, head_dim: int) -> None: ...
    @property
    def block_bytes(self) -> int: ...

def rope_and_cache(
    pool: Pool,
    qkv: NDArray[np.float32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    slots: NDArray[np.int64],
    q_out: NDArray[np.float32],
    cache: NDArray[np.uint8],
    layout: CacheLayout,
    q_norm: NDArray[np.float32] | None = None,
    k_norm: NDArray[np.float32] | None = None,
    eps: float = 1e-6,
) -> None:
    """Norm (if weights are given) and rotate q and k, write k and v to their slots, and the rotated q to q_out.

    qkv: [T, heads + 2 · kv_heads, head_dim]; cos, sin: [T, r]; slots: [T], block · 16 + offset or -1; q_out: [T, heads,
    head_dim]; cache: [blocks, block_bytes], each block contiguous.
    """

def paged_attention(
    pool: Pool,
    q: NDArray[np.float32],
    cache: NDArray[np.uint8],
    layout: CacheLayout,
    row_offsets: NDArray[np.int32],
    positions: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    scale: float,
    out: NDArray[np.float32],
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """out [T, heads, head_dim] = softmax(scale · q · keysᵀ) · values, each query up to its own position.

    row_offsets: [R + 1]; positions: [T]; context_lengths: [R]; block_tables: [R, max_blocks], -1 where unused.
    """

class Sampling:
    """How a sequence's tokens are drawn. Raises ValueError if an id is outside the vocabulary."""

    def __init__(
        self,
        *,
        vocab_size: int,
        seed: int,
        choice: int,
        greedy: bool,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        presence: float,
        frequency: float,
        repetition: float,
        min_tokens: int,
        bias_ids: NDArray[np.int64],
        bias: NDArray[np.float32],
        allowed: NDArray[np.int64],
        held_back: NDArray[np.int64],
    ) -> None: ...

class TokenCounts:
    """Which tokens a sequence has used, and how often its output has. `tokens` [n] begin with the prompt's."""

    def __init__(self, vocab_size: int, tokens: NDArray[np.int32], num_prompt_tokens: int) -> None: ...

def sample(
    pool: Pool,
    logits: NDArray[np.float32],
    settings: list[Sampling],
    counts: list[TokenCounts | None],
    positions: NDArray[np.int64],
    generated: NDArray[np.int64],
    draft_offsets: NDArray[np.int32],
    drafts: NDArray[np.int32],
    tokens: NDArray[np.int32],
    given: NDArray[np.int32],
    masks: NDArray[np.int32] | None = None,
    first_masks: NDArray[np.int32] | None = None,
) -> None:
    """Sample R sequences; sequence r owns 1 + its number of drafts consecutive rows of logits [L, V].

    positions, generated: [R], of the first token to sample; draft_offsets: [R + 1]. tokens: [L], a sequence's tokens
    from its first row of logits on; given: [R], how many, -1 where logits are not finite, -2 where no token is allowed.
    masks: [M, words] bits of what grammars allow, one mask for each row of logits of the sequences that have one;
    first_masks: [R], the first mask of each, -1 for none.
    """

def logprobs(pool: Pool, logits: NDArray[np.float32], token_ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
    """out [L] = log_softmax(logits [L, V]) of token_ids [L]; NaN where a row is not finite."""

def top_logprobs(pool: Pool, logits: NDArray[np.float32], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
    """Write the n most probable tokens of each row to ids [L, n], and their log-probabilities to out [L, n]."""

def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Return the Philox4x32-10 block of a counter of 4 words and a key of 2."""

def uniform(seed: int, choice: int, position: int) -> float:
    """Return the uniform in [0, 1) that decides the token at `position` of a choice. seed: 64 bits."""

class Rope:
    """Rotary factors of all positions, cos and sin [positions, r]. The arrays are kept, not copied."""

    def __init__(self, cos: NDArray[np.float32], sin: NDArray[np.float32]) -> None: ...

class Step:
    """What the layers of one step share. The arrays are kept, not copied: leave them as they are.

    positions: [T]; row_offsets: [R + 1]; context_lengths: [R]; for each group of layers block_tables [R, max_blocks],
    -1 where unused, and slots [T], block · 16 + offset or -1. Tables are checked, tiles cut and rotary factors
    gathered when the first layer asks.
    """

    def __init__(
        self,
        positions: NDArray[np.int32],
        row_offsets: NDArray[np.int32],
        context_lengths: NDArray[np.int32],
        block_tables: Sequence[NDArray[np.int32]],
        slots: Sequence[NDArray[np.int64]],
    ) -> None: ...

class Layer:
    """A decoder layer d wide. Arrays and weights are kept, not copied.

    Norm weights have their offset added; a post norm sits between a block and its residual addition. qkv:
    [(heads + 2 · kv_heads) · head_dim, d]; output: [d, heads · head_dim]; gate_up: a gated weight of d columns, and
    down: [d, features], or neither. activation: silu or gelu_tanh. group: whose tables and slots of a step. window: 0
    for all; softcap: 0 for none.
    """

    def __init__(
        self,
        *,
        layout: CacheLayout,
        heads: int,
        scale: float,
        rope: Rope,
        attention_norm: NDArray[np.float32],
        attention_eps: float,
        qkv: Weight,
        output: Weight,
        mlp_norm: NDArray[np.float32],
        mlp_eps: float,
        gate_up: Weight | None = None,
        down: Weight | None = None,
        qkv_bias: NDArray[np.float32] | None = None,
        output_bias: NDArray[np.float32] | None = None,
        gate_up_bias: NDArray[np.float32] | None = None,
        down_bias: NDArray[np.float32] | None = None,
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
        qk_eps: float = 1e-6,
        post_attention_norm: NDArray[np.float32] | None = None,
        post_attention_eps: float = 1e-6,
        post_mlp_norm: NDArray[np.float32] | None = None,
        post_mlp_eps: float = 1e-6,
        activation: str = "silu",
        group: int = 0,
        window: int = 0,
        softcap: float = 0.0,
    ) -> None: ...
    def bind(self, cache: NDArray[np.uint8]) -> None:
        """Take [blocks, block_bytes], each block contiguous, as the layer's cache."""

def attend(pool: Pool, layer: Layer, step: Step, x: NDArray[np.float32]) -> None:
    """x [T, d] += the layer's attention block: norm, q/k/v, rotation, cache, attention, output.

    The bits are those of rms_norm, linear, rope_and_cache, paged_attention and linear one after the other.
    """

def mlp(pool: Pool, layer: Layer, x: NDArray[np.float32]) -> None:
    """x [T, d] += the layer's feed-forward block: norm, gated product, product back."""

class LayerLora:
    """What an adapter adds to the products of one layer. gate_up: [⌈n / 16⌉ · 32, d] in the columns of `activate`."""

    def __init__(
        self,
        *,
        qkv: Lora | None = None,
        output: Lora | None = None,
        gate_up: Lora | None = None,
        down: Lora | None = None,
    ) -> None: ...

def forward(
    pool: Pool,
    layers: Sequence[Layer],
    step: Step,
    x: NDArray[np.float32],
    adapters: Sequence[Sequence[LayerLora]] = (),
    index: NDArray[np.int32] | None = None,
) -> None:
    """Do both for each of the layers in order; a layer without a feed-forward block only attends.

    adapters: of each its parts, layer after layer. index: [T], which adapter a token has, -1: none; such a token's bits
    are those of a step without adapters.
    """

def embed(pool: Pool, weight: Weight, ids: NDArray[np.int32], out: NDArray[np.float32], scale: float = 1.0) -> None:
    """out [T, k] = rows `ids` [T] of a weight [n, k] that is not gated, times scale."""

def logits(
    pool: Pool,
    norm: NDArray[np.float32],
    eps: float,
    head: Weight,
    x: NDArray[np.float32],
    tokens: NDArray[np.int32],
    out: NDArray[np.float32],
    softcap: float = 0.0,
) -> None:
    """out [L, n] = norm(x[tokens]) · headᵀ, capped by tanh if softcap is not 0. x: [T, k]; norm: [k]; tokens: [L]."""

class Experts:
    """The experts of one layer, all of the same shapes: gated projections of width columns, and those back."""

    def __init__(self, gate_up: Sequence[Weight], down: Sequence[Weight], activation: str = "silu") -> None: ...
    @property
    def count(self) -> int: ...

def route(
    pool: Pool, logits: NDArray[np.float32], chosen: NDArray[np.int32], weights: NDArray[np.float32], normalize: bool
) -> None:
    """Choose experts by logits [T, experts]: the largest of each row into chosen [T, k], of equal ones the first, and
    their shares of softmax(logits) into weights [T, k], divided by the shares' sum if normalize.
    """

def experts(
    pool: Pool,
    x: NDArray[np.float32],
    experts: Experts,
    chosen: NDArray[np.int32],
    weights: NDArray[np.float32],
    out: NDArray[np.float32],
    residual: NDArray[np.float32] | None = None,
) -> None:
    """out [T, width] = residual + the sum over j of weights[:, j] · down(activation(gate · x) · up · x) of expert
    chosen[:, j], in this order. x: [T, width]; chosen, weights: [T, k], -1: no expert. out may be x or residual.
    """

class Lora:
    """A low-rank adapter of a projection: scale · b · a, a [rank, width] and b [columns, rank], float32 or uint16 with
    the bits of bfloat16. Copied."""

    def __init__(
        self, a: NDArray[np.float32] | NDArray[np.uint16], b: NDArray[np.float32] | NDArray[np.uint16], scale: float
    ) -> None: ...
    @property
    def width(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def rank(self) -> int: ...

def lora(
    pool: Pool,
    x: NDArray[np.float32],
    adapters: Sequence[Lora],
    index: NDArray[np.int32],
    out: NDArray[np.float32],
    begin: int = 0,
) -> None:
    """out[t, begin:] += scale · (x[t] · aᵀ) · bᵀ of adapter index[t], -1: none. x: [T, width]; out: [T, any]."""
