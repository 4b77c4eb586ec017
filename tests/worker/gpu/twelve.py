"""Twelve mixed requests through both engines: loop, scheduler, runner and kernels of the GPU's against the CPU's.

The GPU engine has two steps in flight and fewer blocks than its sequences come to need; the CPU engine has neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from octavo_engine.ipc.messages import Snapshot
from octavo_engine.worker.gpu.precision import GpuPrecision
from octavo_kernels.triton.weights import dequantize, quantize
from tests.model.adapters import write_adapter
from tests.model.building import build
from tests.model.test_against_transformers import random_model
from tests.worker import harness
from tests.worker.backends import VOCAB, write_random_llama
from tests.worker.gpu.building import EXACT, build_gpu

KINDS = ("llama, adapters", "int4", "gemma 3")
REQUESTS = 12
SIZES = {"max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 48}


def requests(vocab: int) -> list[tuple[list[int], dict]]:
    """Twelve: with and without a common beginning, longer than a step, greedy and drawn, each in another way."""
    random = np.random.default_rng(7)
    system = random.integers(0, vocab, 36).tolist()
    prompts = [system + random.integers(0, vocab, 2 + index).tolist() for index in range(6)]
    prompts += [random.integers(0, vocab, length).tolist() for length in (1, 16, 17, 60, 5, 33)]
    ways = [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 2.0, "top_k": 20, "seed": 4},
        {"temperature": 1.2, "top_p": 0.8, "seed": 5},
        {"temperature": 1.0, "min_p": 0.02, "repetition_penalty": 1.3, "seed": 6},
        {"temperature": 0.0, "frequency_penalty": 0.9, "logit_bias": {5: 4.0, 9: -3.0}, "min_tokens": 8},
    ]
    return [(prompt, ways[index % len(ways)]) for index, prompt in enumerate(prompts)]


class Texts(NamedTuple):
    """Every request's tokens, and what the engine says of itself at the end."""

    tokens: list[list[int]]
    snapshot: Snapshot


def write_through(executable: Any, vocab: int, count: int, *, pool: int, depth: int, adapter: Path | None) -> Texts:
    """Serve all requests at once, `count` tokens each; every third has the adapter, if there is one."""
    with harness.engine(executable, pool, depth=depth, **SIZES) as client:
        client.patience = 600
        if adapter is not None:
            client.load(0, adapter)
        for number, (prompt, way) in enumerate(requests(vocab)):
            settings = {"min_tokens": count} | way
            slot = 0 if adapter is not None and number % 3 == 0 else -1
            client.submit(number, prompt, max_tokens=count, adapter=slot, **settings)
        keys = [(number, 0) for number in range(REQUESTS)]
        client.wait_finished(*keys)
        client.until(lambda: client.snapshot.running == 0)
        client.scheduler.assert_idle()
        return Texts([client.tokens[key] for key in keys], client.snapshot)


class Twice(NamedTuple):
    """The same requests through both engines."""

    gpu: Texts
    cpu: Texts


def write_twice(kind: str, folder: Path, count: int, pool: int) -> Twice:
    """Serve a kind of model through both engines, `count` tokens a request; the GPU's has a pool of so many blocks."""
    model = folder / "model"
    model.mkdir()
    reference, precision, adapter, vocab = model, EXACT, None, 256
    if kind == "int4":
        reference, precision = int4_pair(model)
    elif kind == "gemma 3":
        windowed(model)
    else:
        write_random_llama(model)
        adapter = write_adapter(folder / "adapter", model)
    cpu = write_through(build(reference), vocab, count, pool=96, depth=1, adapter=adapter)
    gpu = write_through(build_gpu(model, precision), vocab, count, pool=pool, depth=2, adapter=adapter)
    return Twice(gpu, cpu)


def int4_pair(folder: Path) -> tuple[Path, GpuPrecision]:
    """Write a model whose matrices hold what the GPU makes of them in int4, for an engine that has no such weights."""
    write_random_llama(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if "proj" in name:
            tensors[name] = dequantize(quantize(values, "int4")).numpy()
    target = folder.with_name("dequantised")
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target, GpuPrecision("float32", "int4", "float32")


def windowed(folder: Path) -> None:
    """Write a model with layers of a window and layers without: two KV groups."""
    random_model("gemma3", 3, vocab_size=VOCAB).save_pretrained(folder)
