"""A layer's blocks in one call each: the bits of the separate functions, the reference's numbers, row invariance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from octavo_kernels import reference
from octavo_kernels.cpu._native import (
    CacheLayout,
    Layer,
    LayerLora,
    Lora,
    Pool,
    Rope,
    Step,
    Weight,
    attend,
    embed,
    forward,
    linear,
    logits,
    mlp,
    paged_attention,
    rms_norm,
    rope_and_cache,
)
from octavo_kernels.cpu.weights import pack, panel_columns
from tests.kernels.cpu.weight_samples import FLOATS, GGUF_KINDS, QUANTISED, sample

Floats = NDArray[np.float32]

BLOCK, POSITIONS, WIDTH, HIDDEN = 16, 512, 256, 512
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 32
EPS, SCALE = 1e-5, 0.125
KINDS = (*FLOATS, *QUANTISED)

PLAIN: dict[str, Any] = {}
QWEN = {"qkv_bias": True, "output_bias": True, "gate_up_bias": True, "down_bias": True, "qk_norm": True}
GEMMA = {"post_norms": True, "activation": "gelu_tanh", "qk_norm": True, "window": 40, "softcap": 5.0}
OPTIONS = {"plain": PLAIN, "qwen": QWEN, "gemma": GEMMA}
# Each kind of weight, each type of cache, each set of options; not all of their combinations.
COMBINATIONS = [
    *((kind, ("f32", "bf16", "int8")[index % 3], "plain") for index, kind in enumerate(KINDS)),
    *((kind, cache, options) for kind, cache in (("F32", "f32"), ("BF16", "bf16"), ("INT8", "int8"))
      for options in ("qwen", "gemma")),
]  # fmt: skip


class Parts(NamedTuple):
    """A layer's weights, packed and as floats; vectors by the names of Layer's arguments."""

    packed: dict[str, Weight]
    floats: dict[str, Floats]
    vectors: dict[str, Floats]
    layout: CacheLayout
    options: dict[str, Any]


class Rows(NamedTuple):
    """Arrays of a step over a cache of scattered blocks."""

    positions: NDArray[np.int32]
    offsets: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]
    slots: NDArray[np.int64]


def make_parts(pool: Pool, kind: str, cache: str, options: dict[str, Any]) -> Parts:
    rng = np.random.default_rng(7)
    qkv_rows = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    shapes = {
        "qkv": (qkv_rows, WIDTH),
        "output": (WIDTH, HEADS * HEAD_DIM),
        "gate_up": (2 * HIDDEN, WIDTH),
        "down": (WIDTH, HIDDEN),
    }
    packed, floats = {}, {}
    for seed, (name, (n, k)) in enumerate(shapes.items()):
        source, target, plane, values = sample(kind, n, k, seed)
        gated = name == "gate_up"
        packed[name] = pack(pool, source, list(np.split(plane, 2)) if gated else [plane], k, target, gate_up=gated)
        floats[name] = values
    vectors = {"attention_norm": WIDTH, "mlp_norm": WIDTH}
    if options.get("post_norms"):
        vectors |= {"post_attention_norm": WIDTH, "post_mlp_norm": WIDTH}
    if options.get("qk_norm"):
        vectors |= {"q_norm": HEAD_DIM, "k_norm": HEAD_DIM}
    vectors |= {f"{name}_bias": shape[0] for name, shape in shapes.items() if options.get(f"{name}_bias")}
    # Small norms: of large scores a softmax picks one, and a rounding error decides which.
    made = {name: rng.uniform(0.02, 0.1, size).astype(np.float32) for name, size in vectors.items()}
    return Parts(packed, floats, made, CacheLayout(cache, KV_HEADS, HEAD_DIM), options)


def factors() -> tuple[Floats, Floats]:
    frequencies = 10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = np.outer(np.arange(POSITIONS), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def make_layer(parts: Parts, **changes: Any) -> Layer:
    chosen = {name: parts.options[name] for name in ("activation", "window", "softcap") if name in parts.options}
    arguments: dict[str, Any] = dict(
        layout=parts.layout, heads=HEADS, scale=SCALE, rope=Rope(*factors()), attention_eps=EPS, mlp_eps=EPS,
        qk_eps=EPS, post_attention_eps=EPS, post_mlp_eps=EPS, **parts.packed, **parts.vectors, **chosen,
    )  # fmt: skip
    return Layer(**(arguments | changes))


def make_rows(sequences: list[tuple[int, int]]) -> tuple[Rows, int]:
    """Return a step of sequences (context, queries at its end), and the number of blocks."""
    rng = np.random.default_rng(5)
    counts = [-(-context // BLOCK) for context, _ in sequences]
    order = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.full((len(sequences), max(1, *counts, 1)), -1, dtype=np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
    positions = [np.arange(context - queries, context) for context, queries in sequences]
    slots = [tables[row, at // BLOCK].astype(np.int64) * BLOCK + at % BLOCK for row, at in enumerate(positions)]
    return Rows(
        np.concatenate(positions).astype(np.int32),
        np.cumsum([0, *(queries for _, queries in sequences)]).astype(np.int32),
        np.array([context for context, _ in sequences], dtype=np.int32),
        tables,
        np.concatenate(slots),
    ), max(1, sum(counts))


def make_cache(pool: Pool, layout: CacheLayout, blocks: int) -> NDArray[np.uint8]:
    """Return a cache of random keys and values."""
    values = np.random.default_rng(9).standard_normal((blocks * BLOCK, 1 + 2 * KV_HEADS, HEAD_DIM), dtype=np.float32)
    cache, none = np.zeros((blocks, layout.block_bytes), np.uint8), np.zeros((blocks * BLOCK, 0), np.float32)
    q_out = np.empty((blocks * BLOCK, 1, HEAD_DIM), np.float32)
    rope_and_cache(pool, values, none, none, np.arange(blocks * BLOCK), q_out, cache, layout)
    return cache


def step_of(rows: Rows) -> Step:
    return Step(rows.positions, rows.offsets, rows.contexts, [rows.tables], [rows.slots])


def input_of(tokens: int) -> Floats:
    return np.random.default_rng(11).standard_normal((tokens, WIDTH), dtype=np.float32)


def normed(pool: Pool, x: Floats, weight: Floats) -> Floats:
    out = np.empty_like(x)
    rms_norm(pool, x, weight, EPS, out)
    return out


def product(pool: Pool, parts: Parts, name: str, x: Floats, residual: Floats | None = None) -> Floats:
    weight = parts.packed[name]
    out = np.empty((len(x), weight.features), np.float32)
    linear(pool, x, weight, out, residual, parts.vectors.get(f"{name}_bias"), parts.options.get("activation", "silu"))
    return out


def closed(pool: Pool, parts: Parts, name: str, x: Floats, inner: Floats, post_norm: str) -> Floats:
    """Return x + product, which is normed first if there is a norm."""
    if post_norm not in parts.vectors:
        return product(pool, parts, name, inner, x)
    return x + normed(pool, product(pool, parts, name, inner), parts.vectors[post_norm])


def separate_attend(pool: Pool, parts: Parts, rows: Rows, cache: NDArray[np.uint8], x: Floats) -> Floats:
    qkv = product(pool, parts, "qkv", normed(pool, x, parts.vectors["attention_norm"]))
    cos, sin = (table[rows.positions] for table in factors())
    q = np.empty((len(x), HEADS, HEAD_DIM), np.float32)
    rope_and_cache(
        pool, qkv.reshape(len(x), -1, HEAD_DIM), cos, sin, rows.slots, q, cache, parts.layout,
        parts.vectors.get("q_norm"), parts.vectors.get("k_norm"), EPS,
    )  # fmt: skip
    y = np.empty_like(q)
    paged_attention(
        pool, q, cache, parts.layout, rows.offsets, rows.positions, rows.contexts, rows.tables, SCALE, y,
        parts.options.get("window", 0), parts.options.get("softcap", 0.0),
    )  # fmt: skip
    return closed(pool, parts, "output", x, y.reshape(len(x), -1), "post_attention_norm")


def separate_mlp(pool: Pool, parts: Parts, x: Floats) -> Floats:
    hidden = product(pool, parts, "gate_up", normed(pool, x, parts.vectors["mlp_norm"]))
    return closed(pool, parts, "down", x, hidden, "post_mlp_norm")


SEQUENCES = [(300, 1), (33, 33), (0, 0), (90, 17), (1, 1), (257, 2)]


@pytest.mark.parametrize(("kind", "cache_type", "options"), COMBINATIONS)
def test_a_block_has_the_bits_of_the_separate_functions(pool: Pool, kind: str, cache_type: str, options: str) -> None:
    parts = make_parts(pool, kind, cache_type, OPTIONS[options])
    rows, blocks = make_rows(SEQUENCES)
    layer, cache = make_layer(parts), make_cache(pool, parts.layout, blocks)
    x, mine = input_of(len(rows.positions)), cache.copy()
    layer.bind(mine)
    got = x.copy()
    attend(pool, layer, step_of(rows), got)
    wanted = separate_attend(pool, parts, rows, cache, x)
    assert np.array_equal(got, wanted)
    assert np.array_equal(mine, cache)
    mlp(pool, layer, got)
    assert np.array_equal(got, separate_mlp(pool, parts, wanted))


def test_layers_in_one_call_have_the_bits_of_block_after_block(pool: Pool) -> None:
    parts = make_parts(pool, "INT8", "int8", PLAIN)
    rows, blocks = make_rows(SEQUENCES)
    layers = [make_layer(parts), make_layer(parts, gate_up=None, down=None), make_layer(parts)]
    results = []
    for one_call in (True, False):
        for layer in layers:
            layer.bind(make_cache(pool, parts.layout, blocks))
        x = input_of(len(rows.positions))
        step = step_of(rows)
        if one_call:
            forward(pool, layers, step, x)
        else:
            for index, layer in enumerate(layers):
                attend(pool, layer, step, x)
                if index != 1:
                    mlp(pool, layer, x)
        results.append(x.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["INT8", "Q4_K", "INT4"])
def test_quantised_blocks_have_the_same_bits_in_every_variant(
    pools: dict[str, Pool], kind: str, options: dict[str, Any]
) -> None:
    results = set()
    for pool in pools.values():
        parts = make_parts(pool, kind, "int8", options)
        layer = make_layer(parts)
        x = input_of(19)
        mlp(pool, layer, x)
        results.add(x.tobytes())
    assert len(results) == 1


def reference_block(parts: Parts, rows: Rows, keys: Floats, values: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return x after the attention block, and after the feed-forward block, in torch's float32."""
    tensors = {name: torch.from_numpy(value) for name, value in (parts.floats | parts.vectors).items()}
    start = torch.from_numpy(x)

    def add(x: torch.Tensor, name: str, inner: torch.Tensor, post_norm: str) -> torch.Tensor:
        y = reference.linear(inner, tensors[name], tensors.get(f"{name}_bias"))
        return x + (reference.rms_norm(y, tensors[post_norm], EPS)[0] if post_norm in tensors else y)

    qkv = reference.linear(
        reference.rms_norm(start, tensors["attention_norm"], EPS)[0], tensors["qkv"], tensors.get("qkv_bias")
    ).view(len(x), -1, HEAD_DIM)
    q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
    if "q_norm" in tensors:
        q, k = (reference.rms_norm(part.reshape(-1, HEAD_DIM), tensors[name], EPS)[0].view(part.shape)
                for part, name in ((q, "q_norm"), (k, "k_norm")))  # fmt: skip
    cache = torch.from_numpy(np.stack([keys, values]))
    cos, sin = (torch.from_numpy(table[rows.positions]) for table in factors())
    q = reference.rope_and_cache(q, k, v, cos, sin, cache, torch.from_numpy(rows.slots))
    window, softcap = parts.options.get("window", 0), parts.options.get("softcap", 0.0)
    plan = reference.plan_attention(
        rows.offsets, rows.positions, rows.contexts, rows.tables, BLOCK, HEADS // KV_HEADS, window
    )
    y = reference.paged_attention(q, cache, plan, SCALE, softcap).flatten(1)
    attended = add(start, "output", y, "post_attention_norm")
    gate_up = reference.linear(
        reference.rms_norm(attended, tensors["mlp_norm"], EPS)[0], tensors["gate_up"], tensors.get("gate_up_bias")
    )
    gate, up = gate_up.chunk(2, dim=1)
    gelu = parts.options.get("activation") == "gelu_tanh"
    hidden = torch.nn.functional.gelu(gate, approximate="tanh") * up if gelu else reference.silu_mul(gate_up)
    return attended.numpy(), add(attended, "down", hidden, "post_mlp_norm").numpy()


# Largest error of a block's output, relative to the output's size.
TOLERANCE = {"F32": 1e-5, "BF16": 1e-2, "INT8": 2e-2}


_references: dict[tuple[str, str], tuple[Floats, Floats]] = {}
"""The reference's results: every variant is held to the same."""


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", TOLERANCE)
def test_a_block_is_the_references(pool: Pool, kind: str, options: str) -> None:
    parts = make_parts(pool, kind, "f32", OPTIONS[options])
    rows, blocks = make_rows([(33, 33), (0, 0), (17, 17), (1, 1)])
    layer = make_layer(parts)
    layer.bind(np.zeros((blocks, parts.layout.block_bytes), np.uint8))
    x = input_of(len(rows.positions))
    empty = np.zeros((blocks, BLOCK, KV_HEADS, HEAD_DIM), np.float32)
    if (kind, options) not in _references:
        _references[kind, options] = reference_block(parts, rows, empty, empty.copy(), x)
    attended, complete = _references[kind, options]
    got = x.copy()
    attend(pool, layer, step_of(rows), got)
    assert np.abs(got - attended).max() <= TOLERANCE[kind] * np.abs(attended).max()
    mlp(pool, layer, got)
    assert np.abs(got - complete).max() <= TOLERANCE[kind] * np.abs(complete).max()


@pytest.mark.parametrize("options", [PLAIN, GEMMA], ids=["plain", "gemma"])
@pytest.mark.parametrize(("kind", "cache_type"), [("F32", "f32"), ("BF16", "bf16"), ("INT8", "int8"), ("INT4", "bf16")])
def test_a_row_alone_is_itself_in_a_chunk_and_among_others(
    pool: Pool, kind: str, cache_type: str, options: dict[str, Any]
) -> None:
    parts = make_parts(pool, kind, cache_type, options)
    sequences = [(50, 50), *((20 + 4 * i, 1) for i in range(63))]
    rows, blocks = make_rows(sequences)
    layer, cache = make_layer(parts), make_cache(pool, parts.layout, blocks)
    x = input_of(len(rows.positions))

    def run(begin: int, end: int, row: int | None, over: NDArray[np.uint8]) -> Floats:
        """Run tokens begin to end, all rows of the step or one."""
        part = x[begin:end].copy()
        layer.bind(over)
        if row is None:
            chosen = rows
        else:
            chosen = Rows(
                rows.positions[begin:end].copy(),
                np.array([0, end - begin], np.int32),
                rows.positions[end - 1 : end] + np.int32(1),
                rows.tables[row : row + 1].copy(),
                rows.slots[begin:end].copy(),
            )
        attend(pool, layer, step_of(chosen), part)
        mlp(pool, layer, part)
        return part

    together = run(0, len(x), None, cache.copy())
    chunked = cache.copy()
    for begin, end in ((0, 7), (7, 8), (8, 40), (40, 50)):
        assert np.array_equal(run(begin, end, 0, chunked), together[begin:end])
    for row in range(1, 64):
        assert np.array_equal(run(49 + row, 50 + row, row, cache.copy()), together[49 + row : 50 + row])


def test_threads_do_not_change_a_bit(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", pool.variant)
    parts = make_parts(pool, "INT8", "bf16", GEMMA)
    rows, blocks = make_rows(SEQUENCES)
    layer, cache = make_layer(parts), make_cache(pool, parts.layout, blocks)
    results = set()
    for runner in (pool, Pool(1), Pool(3)):
        layer.bind(cache.copy())
        x = input_of(len(rows.positions))
        attend(runner, layer, step_of(rows), x)
        mlp(runner, layer, x)
        results.add(x.tobytes())
    assert len(results) == 1


def test_a_step_without_tokens_changes_nothing(pool: Pool) -> None:
    parts = make_parts(pool, "INT8", "bf16", PLAIN)
    layer = make_layer(parts)
    layer.bind(np.zeros((1, parts.layout.block_bytes), np.uint8))
    none = Step(*(np.zeros(n, np.int32) for n in (0, 1, 0)), [np.zeros((0, 1), np.int32)], [np.zeros(0, np.int64)])
    x = np.zeros((0, WIDTH), np.float32)
    attend(pool, layer, none, x)
    mlp(pool, layer, x)
    embed(pool, parts.packed["down"], np.zeros(0, np.int32), np.zeros((0, HIDDEN), np.float32))
    logits(pool, parts.vectors["mlp_norm"], EPS, parts.packed["qkv"], input_of(3), np.zeros(0, np.int32),
           np.zeros((0, parts.packed["qkv"].n), np.float32))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [256, 512])
def test_embedded_rows_are_the_weights(pool: Pool, kind: str, k: int) -> None:
    source, target, plane, values = sample(kind, 77, k)
    weight = pack(pool, source, [plane], k, target)
    ids = np.array([0, 76, 31, 32, 15, 16, 31, 64], np.int32)
    out = np.empty((len(ids), k), np.float32)
    embed(pool, weight, ids, out)
    assert np.array_equal(out, values[ids]) or kind not in (*FLOATS, *GGUF_KINDS[:4], "INT8")
    np.testing.assert_allclose(out, values[ids], rtol=1e-6, atol=1e-7)
    scaled = np.empty_like(out)
    embed(pool, weight, ids, scaled, 3.5)
    assert np.array_equal(scaled, out * np.float32(3.5))


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_an_odd_width_is_embedded(pool: Pool, kind: str) -> None:
    source, target, plane, values = sample(kind, 40, 33)
    out = np.empty((2, 33), np.float32)
    embed(pool, pack(pool, source, [plane], 33, target), np.array([39, 5], np.int32), out)
    assert np.array_equal(out, values[[39, 5]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_logits_are_those_of_the_wanted_tokens(pool: Pool, kind: str, softcap: float) -> None:
    source, target, plane, _ = sample(kind, 100, WIDTH)
    head, norm, x = (
        pack(pool, source, [plane], WIDTH, target),
        np.linspace(0.5, 1, WIDTH, dtype=np.float32),
        input_of(9),
    )
    tokens = np.array([8, 0, 3], np.int32)
    out, wanted = np.empty((3, 100), np.float32), np.empty((3, 100), np.float32)
    logits(pool, norm, EPS, head, x, tokens, out, softcap)
    linear(pool, normed(pool, x[tokens], norm), head, wanted)
    if softcap:
        np.testing.assert_allclose(out, np.tanh(wanted / softcap) * softcap, rtol=1e-5, atol=1e-6)
    else:
        assert np.array_equal(out, wanted)


def test_time_inside_calls_is_counted(pool: Pool) -> None:
    before = pool.seconds_inside
    x = input_of(64)
    mlp(pool, make_layer(make_parts(pool, "F32", "f32", PLAIN)), x)
    assert before < pool.seconds_inside


def test_what_does_not_fit_is_refused(pool: Pool) -> None:
    parts = make_parts(pool, "INT8", "bf16", PLAIN)
    rows, blocks = make_rows([(40, 2)])
    x = input_of(2)
    layer = make_layer(parts)
    with pytest.raises(ValueError, match="bind one"):
        attend(pool, layer, step_of(rows), x)
    layer.bind(np.zeros((1, parts.layout.block_bytes), np.uint8))
    with pytest.raises(ValueError, match="A slot lies outside"):
        attend(pool, layer, step_of(rows._replace(slots=rows.slots + 1000)), x)
    with pytest.raises(ValueError, match="not in the cache"):
        attend(pool, layer, step_of(rows._replace(slots=np.full(2, -1))), x)
    layer.bind(np.zeros((blocks, parts.layout.block_bytes), np.uint8))
    with pytest.raises(ValueError, match="beyond the rotary factors"):
        attend(pool, layer, step_of(rows._replace(positions=rows.positions + np.int32(POSITIONS))), x)
    with pytest.raises(ValueError, match=r"x has shape \[3, 256\]"):
        attend(pool, layer, step_of(rows), input_of(3))
    with pytest.raises(ValueError, match="without a feed-forward block"):
        mlp(pool, make_layer(parts, gate_up=None, down=None), x)
    with pytest.raises(ValueError, match="both gate_up and down"):
        make_layer(parts, down=None)
    with pytest.raises(ValueError, match=r"qkv is \[256, 512\]"):
        make_layer(parts, qkv=parts.packed["down"])
    grouped = make_layer(parts, group=1)
    grouped.bind(np.zeros((blocks, parts.layout.block_bytes), np.uint8))
    with pytest.raises(ValueError, match="no block tables for the layer's group"):
        attend(pool, grouped, step_of(rows), x)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        embed(pool, parts.packed["down"], np.array([WIDTH], np.int32), np.empty((1, HIDDEN), np.float32))


def small(rng: np.random.Generator, *shape: int) -> Floats:
    return (rng.standard_normal(shape) * 0.05).astype(np.float32)


class Adaptation(NamedTuple):
    """An adapter of a layer, and what it adds to each of its matrices."""

    native: LayerLora
    added: dict[str, Floats]


def make_adaptation(seed: int, products: tuple[str, ...]) -> Adaptation:
    rng = np.random.default_rng(seed)
    shapes = {
        "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
        "output": (WIDTH, HEADS * HEAD_DIM),
        "gate_up": (2 * HIDDEN, WIDTH),
        "down": (WIDTH, HIDDEN),
    }
    parts, added = {}, {}
    for name in products:
        (n, k), rank, scale = shapes[name], 3 + seed, 0.5 + seed
        a, b = small(rng, rank, k), small(rng, n, rank)
        added[name] = scale * (b @ a)
        if name == "gate_up":
            gate, columns = panel_columns(HIDDEN)
            panels = np.zeros((columns, rank), np.float32)
            panels[gate], panels[gate + 16] = b[:HIDDEN], b[HIDDEN:]
            b = panels
        parts[name] = Lora(a, b, scale)
    return Adaptation(LayerLora(**parts), added)


ALL_PRODUCTS = ("qkv", "output", "gate_up", "down")


def run_adapted(
    pool: Pool, parts: Parts, rows: Rows, blocks: int, adapters: list[Adaptation], index: NDArray[np.int32] | None
) -> Floats:
    layers = [make_layer(parts), make_layer(parts)]
    for layer in layers:
        layer.bind(make_cache(pool, parts.layout, blocks))
    x = input_of(len(rows.positions))
    forward(pool, layers, step_of(rows), x, [[adapter.native] * 2 for adapter in adapters], index)
    return x


@pytest.mark.parametrize(("kind", "cache_type", "options"), COMBINATIONS)
def test_tokens_without_an_adapter_have_the_bits_of_a_step_without_adapters(
    pool: Pool, kind: str, cache_type: str, options: str
) -> None:
    parts = make_parts(pool, kind, cache_type, OPTIONS[options])
    rows, blocks = make_rows(SEQUENCES)
    adapters = [make_adaptation(0, ALL_PRODUCTS), make_adaptation(1, ("qkv",)), make_adaptation(2, ("gate_up",))]
    # An adapter for each sequence: its tokens read what they themselves wrote.
    index = np.repeat(np.array([0, -1, -1, 1, 2, -1], np.int32), np.diff(rows.offsets))
    plain = run_adapted(pool, parts, rows, blocks, [], None)
    mixed = run_adapted(pool, parts, rows, blocks, adapters, index)
    assert np.array_equal(mixed[index < 0].view(np.uint32), plain[index < 0].view(np.uint32))
    assert all((mixed[index == which] != plain[index == which]).any() for which in range(3))


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_1"])
def test_an_adapted_sequence_has_the_same_bits_alone_and_among_others(pool: Pool, kind: str) -> None:
    parts = make_parts(pool, kind, "int8", QWEN)
    adapters = [make_adaptation(0, ALL_PRODUCTS), make_adaptation(1, ALL_PRODUCTS)]
    rows, blocks = make_rows(SEQUENCES)
    owners = np.repeat(np.arange(len(SEQUENCES)), np.diff(rows.offsets))
    index = (owners % 2).astype(np.int32)
    together = run_adapted(pool, parts, rows, blocks, adapters, index)
    for sequence in range(len(SEQUENCES)):
        mine = owners == sequence
        if not mine.any():
            continue
        x, layers = input_of(len(owners))[mine], [make_layer(parts), make_layer(parts)]
        for layer in layers:
            layer.bind(make_cache(pool, parts.layout, blocks))
        offsets = np.array([0, mine.sum()], np.int32)
        alone = Step(
            rows.positions[mine], offsets, rows.contexts[sequence : sequence + 1],
            [rows.tables[sequence : sequence + 1]], [rows.slots[mine]],
        )  # fmt: skip
        only = [[adapters[sequence % 2].native] * 2]
        forward(pool, layers, alone, x, only, np.zeros(int(mine.sum()), np.int32))
        assert np.array_equal(x.view(np.uint32), together[mine].view(np.uint32))


@pytest.mark.parametrize("products", [*((name,) for name in ALL_PRODUCTS), ALL_PRODUCTS])
@pytest.mark.parametrize("options", OPTIONS)
def test_an_adapted_layer_is_the_one_whose_weights_have_it_added(
    pool: Pool, products: tuple[str, ...], options: str
) -> None:
    parts = make_parts(pool, "F32", "f32", OPTIONS[options])
    rows, blocks = make_rows([(33, 33), (17, 17), (1, 1)])
    adaptation = make_adaptation(1, products)
    x, layer = input_of(len(rows.positions)), make_layer(parts)
    layer.bind(np.zeros((blocks, parts.layout.block_bytes), np.uint8))
    got = x.copy()
    forward(pool, [layer], step_of(rows), got, [[adaptation.native]], np.zeros(len(x), np.int32))
    merged = {name: values + adaptation.added.get(name, np.float32(0)) for name, values in parts.floats.items()}
    empty = np.zeros((blocks, BLOCK, KV_HEADS, HEAD_DIM), np.float32)
    _, wanted = reference_block(parts._replace(floats=merged), rows, empty, empty.copy(), x)
    assert np.abs(got - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_an_adapter_that_does_not_fit_its_layer_is_named(pool: Pool) -> None:
    parts = make_parts(pool, "F32", "f32", PLAIN)
    rows, blocks = make_rows([(1, 1)])
    layer = make_layer(parts)
    layer.bind(make_cache(pool, parts.layout, blocks))
    wrong = LayerLora(down=Lora(np.zeros((2, WIDTH), np.float32), np.zeros((WIDTH, 2), np.float32), 1.0))
    none, zero = np.full(1, -1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=f"An adapter of down has b with {WIDTH} rows and a with {HIDDEN} columns"):
        forward(pool, [layer], step_of(rows), input_of(1), [[wrong]], none)
    with pytest.raises(ValueError, match="a part for each layer"):
        forward(pool, [layer], step_of(rows), input_of(1), [[]], none)
    with pytest.raises(ValueError, match="beyond the last of 0"):
        forward(pool, [layer], step_of(rows), input_of(1), [], zero)
