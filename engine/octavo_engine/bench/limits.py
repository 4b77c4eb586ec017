"""What this machine can do at the most, and which share of it a run used: multiply-adds, and bytes read.

The peak of a type is the best of our own product's shapes and, where torch is installed, of its product of 2048³
(taken in a process of its own: torch must not enter this one). Sitting beside other work lowers both the figure and
the limit, so they are taken one right after the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Final

import msgspec
import numpy as np

from octavo_engine.model.spec import LayerSpec, ModelSpec

READ_BYTES: Final = 1 << 30
_REPEAT: Final = 5
_SHAPES: Final = ((512, 2048, 2048), (512, 3072, 576), (512, 576, 1536), (2048, 2048, 2048))
"""Rows, output features, input features of our own products: square ones, and those of a small model's layers."""
_TORCH: Final = """
import sys, time, torch
kind, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
n = 2048
if kind == "int8":
    a, b = (torch.randint(-127, 127, (n, n), dtype=torch.int8) for _ in range(2))
    product = lambda: torch._int_mm(a, b)
else:
    a, b = (torch.randn(n, n).to(getattr(torch, kind)) for _ in range(2))
    product = lambda: a @ b
times = []
for _ in range(7):
    began = time.perf_counter()
    product()
    times.append(time.perf_counter() - began)
print(n ** 3 / min(times))
"""


class Limits(msgspec.Struct, frozen=True):
    """A machine's limits for one type of arithmetic. `sources` says where the peak was found."""

    kind: str
    multiply_adds_per_second: float
    bytes_per_second: float
    sources: dict[str, float]


class Work(msgspec.Struct, frozen=True):
    """What a model's products and reads amount to, as the backend and the spec state them."""

    layer_multiply_adds: int
    """Of the weight products of all layers, for one token."""
    head_multiply_adds: int
    """Of the output head, for one row of logits."""
    packed_bytes: int
    """Weights read by one step; 0 where the backend does not say."""
    kv_bytes_per_token: float

    def multiply_adds(self, tokens: int, logit_rows: int) -> int:
        """Return those of the weight products of so many computed tokens and rows of logits."""
        return tokens * self.layer_multiply_adds + logit_rows * self.head_multiply_adds


def work_of(executable: Any) -> Work | None:
    """Return the work of a backend's executable; None for one that states no `spec` (a scripted model)."""
    spec: ModelSpec | None = getattr(executable, "spec", None)
    if spec is None:
        return None
    layout = executable.layout
    return Work(
        layer_multiply_adds=sum(_layer(layer, spec.hidden_size) for layer in spec.layers),
        head_multiply_adds=spec.vocab_size * spec.hidden_size,
        packed_bytes=int(getattr(executable, "packed_bytes", 0)),
        kv_bytes_per_token=sum(group.bytes_per_block for group in layout.groups) / layout.block_size,
    )


def _layer(layer: LayerSpec, hidden: int) -> int:
    attention, mlp = layer.attention, layer.mlp
    products = hidden * (attention.q_size + 2 * attention.kv_size) + attention.q_size * hidden
    feed_forward = 3 * hidden * mlp.intermediate_size
    if mlp.moe is None:
        return products + feed_forward
    return products + feed_forward * mlp.moe.experts_per_token + hidden * mlp.moe.num_experts


def measure_limits(kind: str, threads: int, pool: Any = None) -> Limits:
    """Measure the limits of `kind` (float32, bfloat16 or int8) with `threads` threads; `pool` is a native one."""
    found = {"read": _read(threads)}
    if pool is not None:
        found |= {f"own {rows}×{n}×{k}": _own(pool, kind, rows, n, k) for rows, n, k in _SHAPES}
    if find_spec("torch") is not None:
        peak = _torch(kind, threads)
        found |= {} if peak is None else {"torch 2048³": peak}
    read = found.pop("read")
    return Limits(kind, max(found.values(), default=0.0), read, found)


def _read(threads: int) -> float:
    """Return bytes a second of reading 1 GiB: the best of a few ways, so that no instruction mix is the limit."""
    parts = np.array_split(np.ones(READ_BYTES // 8, np.float64), threads)
    ways: tuple[Callable[[Any], Any], ...] = (
        lambda part: np.add.reduce(part),
        lambda part: np.maximum.reduce(part.view(np.float32)),
        lambda part: np.maximum.reduce(part.view(np.uint8)),
    )
    best = float("inf")
    with ThreadPoolExecutor(threads) as workers:
        for way in ways:
            for _ in range(3):
                began = time.perf_counter()
                list(workers.map(way, parts))
                best = min(best, time.perf_counter() - began)
    return READ_BYTES / best


def _own(pool: Any, kind: str, rows: int, n: int, k: int) -> float:
    from octavo_kernels.cpu._native import linear
    from octavo_kernels.cpu.weights import pack

    target = {"float32": "F32", "bfloat16": "BF16", "int8": "INT8"}[kind]
    draw = np.random.default_rng(0)
    weight = pack(pool, "F32", [draw.standard_normal((n, k), dtype=np.float32)], k, target)
    x, out = draw.standard_normal((rows, k), dtype=np.float32), np.empty((rows, n), np.float32)
    best = float("inf")
    for _ in range(_REPEAT):
        began = time.perf_counter()
        linear(pool, x, weight, out)
        best = min(best, time.perf_counter() - began)
    return rows * n * k / best


def _torch(kind: str, threads: int) -> float | None:
    """Return torch's peak; None if the torch that is installed cannot compute this, which is said."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", _TORCH, kind, str(threads)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        last = ran.stderr.strip().rpartition("\n")[2]
        print(f"  torch is left out of the limits: {last}", file=sys.stderr, flush=True)
        return None
    return float(ran.stdout)
