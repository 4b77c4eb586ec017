"""Speed of whole steps on the CPU: SmolLM2-135M's 30 layers and head, one native call per block.

    python benchmarks/cpu_layers.py --kinds INT8,BF16 --rows 1,8,64,512 [--json]

Rows up to 64 are decoding sequences, each of --context tokens; more are one sequence's chunk of a prompt, with the
logits of its last row. Beside the step: the same by the separate functions (alternating with it, medians of --repeat),
the share of the time that was spent inside native calls, and this machine's bandwidth when the pool reads memory.
OCTAVO_CPU_ISA chooses the variant.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu._native import (
    CacheLayout,
    Layer,
    Pool,
    Rope,
    Step,
    Weight,
    attend,
    embed,
    linear,
    logits,
    mlp,
    paged_attention,
    rms_norm,
    rope_and_cache,
)
from octavo_kernels.cpu.weights import pack

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 30, 576, 1536, 49152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
BLOCK, POSITIONS, EPS, SCALE = 16, 8192, 1e-5, 0.125
CACHES = {"F32": "f32", "BF16": "bf16", "INT8": "bf16", "INT4": "bf16"}

Floats = NDArray[np.float32]


class Model(NamedTuple):
    """Weights of each layer (qkv, output, gate_up, down), the layers, head, norm and rotary factors."""

    weights: list[tuple[Weight, Weight, Weight, Weight]]
    layers: list[Layer]
    head: Weight
    norm: Floats
    cos: Floats
    sin: Floats
    layout: CacheLayout

    @property
    def nbytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self.head.nbytes + sum(weight.nbytes for layer in self.weights for weight in layer)


class Rows(NamedTuple):
    """A step's arrays."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    offsets: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]
    slots: NDArray[np.int64]
    wanted: NDArray[np.int32]
    caches: list[NDArray[np.uint8]]


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="INT8,INT4,BF16,F32")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--context", type=int, default=320)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pool = Pool(options.threads)
    report: dict[str, Any] = {"variant": pool.variant, "threads": pool.threads, "read_gb_per_s": read_speed(pool)}
    if not options.json:
        print(f"{report}, load {os.getloadavg()[0]:.1f}")
    results = []
    for kind in options.kinds.split(","):
        model = make_model(pool, kind)
        for rows in map(int, options.rows.split(",")):
            result = measure(pool, model, kind, rows, options)
            results.append(result)
            if not options.json:
                show(result)
    if options.json:
        print(json.dumps(report | {"results": results}, indent=2))


def read_speed(pool: Pool) -> float:
    """Return the GB/s at which the pool reads 256 MB of weights for one row: the simplest product there is."""
    weight = pack(pool, "F32", [np.zeros((65536, 1024), np.float32)], 1024)
    x, out = np.zeros((1, 1024), np.float32), np.empty((1, 65536), np.float32)
    return weight.nbytes / min(seconds(lambda: linear(pool, x, weight, out)) for _ in range(5)) / 1e9


def make_model(pool: Pool, kind: str) -> Model:
    """Return random weights, each layer's in memory of its own."""
    rng = np.random.default_rng(0)

    def weight(n: int, k: int) -> Weight:
        return pack(pool, "F32", [rng.standard_normal((n, k), dtype=np.float32) / np.float32(k**0.5)], k, kind)

    def gated() -> Weight:
        planes = [rng.standard_normal((INTERMEDIATE, HIDDEN), dtype=np.float32) / np.float32(24) for _ in range(2)]
        return pack(pool, "F32", planes, HIDDEN, kind, gate_up=True)

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    weights = [
        (weight(width, HIDDEN), weight(HIDDEN, HIDDEN), gated(), weight(HIDDEN, INTERMEDIATE)) for _ in range(LAYERS)
    ]
    angles = np.outer(np.arange(POSITIONS), 1e5 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)))
    cos, sin, norm = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), np.ones(HIDDEN, np.float32)
    layout, rope = CacheLayout(CACHES[kind], KV_HEADS, HEAD_DIM), Rope(cos, sin)
    layers = [
        Layer(
            layout=layout, heads=HEADS, scale=SCALE, rope=rope, attention_norm=norm, attention_eps=EPS, qkv=qkv,
            output=output, mlp_norm=norm, mlp_eps=EPS, gate_up=gate_up, down=down,
        )
        for qkv, output, gate_up, down in weights
    ]  # fmt: skip
    return Model(weights, layers, weight(VOCABULARY, HIDDEN), norm, cos, sin, layout)


def make_rows(model: Model, rows: int, context: int) -> Rows:
    """Return a step of `rows` decoding sequences, or of one chunk, and its caches."""
    sequences, queries = (rows, 1) if rows <= 64 else (1, rows)
    context = max(context, queries)
    blocks = -(-context // BLOCK)
    tables = np.random.default_rng(1).permutation(sequences * blocks).astype(np.int32).reshape(sequences, blocks)
    positions = np.tile(np.arange(context - queries, context), sequences)
    row = np.repeat(np.arange(sequences), queries)
    caches = [np.zeros((sequences * blocks, model.layout.block_bytes), np.uint8) for _ in range(LAYERS)]
    for layer, cache in zip(model.layers, caches, strict=True):
        layer.bind(cache)
    return Rows(
        np.random.default_rng(2).integers(0, VOCABULARY, rows).astype(np.int32),
        positions.astype(np.int32),
        np.arange(sequences + 1, dtype=np.int32) * np.int32(queries),
        np.full(sequences, context, np.int32),
        tables,
        tables[row, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
        np.arange(queries - 1, rows, queries, dtype=np.int32),
        caches,
    )


def fused_step(pool: Pool, model: Model, rows: Rows) -> Floats:
    """Return the logits of a step, by one call per block."""
    step = Step(rows.positions, rows.offsets, rows.contexts, [rows.tables], [rows.slots])
    x = np.empty((len(rows.tokens), HIDDEN), np.float32)
    embed(pool, model.head, rows.tokens, x)
    for layer in model.layers:
        attend(pool, layer, step, x)
        mlp(pool, layer, x)
    out = np.empty((len(rows.wanted), VOCABULARY), np.float32)
    logits(pool, model.norm, EPS, model.head, x, rows.wanted, out)
    return out


def separate_step(pool: Pool, model: Model, rows: Rows) -> Floats:
    """Return the same by the separate functions."""
    tokens = len(rows.tokens)
    x = np.empty((tokens, HIDDEN), np.float32)
    embed(pool, model.head, rows.tokens, x)
    cos, sin = model.cos[rows.positions], model.sin[rows.positions]
    normed, qkv = np.empty_like(x), np.empty((tokens, HEADS + 2 * KV_HEADS, HEAD_DIM), np.float32)
    q, hidden = np.empty((tokens, HEADS, HEAD_DIM), np.float32), np.empty((tokens, INTERMEDIATE), np.float32)
    y = np.empty_like(q)
    for (qkv_weight, output, gate_up, down), cache in zip(model.weights, rows.caches, strict=True):
        rms_norm(pool, x, model.norm, EPS, normed)
        linear(pool, normed, qkv_weight, qkv.reshape(tokens, -1))
        rope_and_cache(pool, qkv, cos, sin, rows.slots, q, cache, model.layout)
        paged_attention(
            pool, q, cache, model.layout, rows.offsets, rows.positions, rows.contexts, rows.tables, SCALE, y
        )
        linear(pool, y.reshape(tokens, -1), output, x, x)
        rms_norm(pool, x, model.norm, EPS, normed)
        linear(pool, normed, gate_up, hidden)
        linear(pool, hidden, down, x, x)
    wanted = np.empty((len(rows.wanted), HIDDEN), np.float32)
    rms_norm(pool, x[rows.wanted], model.norm, EPS, wanted)
    out = np.empty((len(rows.wanted), VOCABULARY), np.float32)
    linear(pool, wanted, model.head, out)
    return out


def measure(pool: Pool, model: Model, kind: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time a step of `count` rows, alternating with the separate functions."""
    rows = make_rows(model, count, options.context)
    if not np.array_equal(fused_step(pool, model, rows), separate_step(pool, model, rows)):
        raise SystemExit("The step and the separate functions differ: rebuild the module.")
    fused, inside, separate = [], [], []
    for _ in range(options.repeat):
        before = pool.seconds_inside
        fused.append(seconds(lambda: fused_step(pool, model, rows)))
        inside.append(pool.seconds_inside - before)
        separate.append(seconds(lambda: separate_step(pool, model, rows)))
    step = statistics.median(fused)
    parameters = sum(weight.n * weight.k for layer in model.weights for weight in layer)
    visible = float((rows.positions + 1).sum())
    work = 2.0 * parameters * count + 2.0 * len(rows.wanted) * HIDDEN * VOCABULARY
    work += 4.0 * LAYERS * HEADS * HEAD_DIM * visible
    cache = sum(array.nbytes for array in rows.caches) if count <= 64 else 0
    return {
        "kind": kind,
        "rows": count,
        "step_ms": step * 1e3,
        "tokens_per_s": count / step,
        "gops": work / step / 1e9,
        "gb_per_s": (model.nbytes + cache) / step / 1e9,
        "outside_share": 1 - statistics.median(inside) / step,
        "fastest_ms": min(fused) * 1e3,
        "separate_ms": statistics.median(separate) * 1e3,
    }


def seconds(run: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def show(result: dict[str, Any]) -> None:
    """Print a line of the table."""
    speed = "{kind:>5} {rows:>4} rows {step_ms:8.2f} ms (fastest {fastest_ms:.2f}) {tokens_per_s:8.0f} tokens/s"
    detail = "{gops:7.1f} GOP/s {gb_per_s:6.1f} GB/s  outside {outside_share:5.1%}  separate {separate_ms:.2f} ms"
    print(f"{speed} {detail}".format_map(result))


if __name__ == "__main__":
    main()
