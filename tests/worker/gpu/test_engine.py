"""The whole GPU engine gives the CPU engine's tokens: loop, scheduler, runner, kernels, two steps in flight."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo_engine.worker.gpu.precision import GpuPrecision
from octavo_kernels.triton.weights import dequantize, quantize
from tests.model.adapters import write_adapter
from tests.model.building import build
from tests.model.test_against_transformers import random_model
from tests.worker import harness
from tests.worker.backends import write_random_llama
from tests.worker.gpu.building import EXACT, build_gpu

TOKENS = 32
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


def run(executable, vocab: int, *, pool: int, depth: int, adapter: Path | None = None):
    """Return every request's tokens, and the last snapshot. Every third request has the adapter."""
    with harness.engine(executable, pool, depth=depth, **SIZES) as client:
        if adapter is not None:
            client.load(0, adapter)
        for number, (prompt, way) in enumerate(requests(vocab)):
            settings = {"min_tokens": TOKENS} | way
            slot = 0 if adapter is not None and number % 3 == 0 else -1
            client.submit(number, prompt, max_tokens=TOKENS, adapter=slot, **settings)
        keys = [(number, 0) for number in range(12)]
        client.patience = 300
        client.wait_finished(*keys)
        client.until(lambda: client.snapshot.running == 0)
        client.scheduler.assert_idle()
        return [client.tokens[key] for key in keys], client.snapshot


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


def windowed(folder: Path) -> Path:
    random_model("gemma3", 3).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    return folder


@pytest.mark.parametrize("kind", ["llama, adapters", "int4", "gemma 3"])
def test_twelve_mixed_requests_give_the_cpu_engine_s_tokens(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    reference, precision, adapter, vocab = folder, EXACT, None, 256
    if kind == "int4":
        reference, precision = int4_pair(folder)
    elif kind == "gemma 3":
        windowed(folder)
        vocab = 160
    else:
        write_random_llama(folder)
        adapter = write_adapter(tmp_path / "adapter", folder)
    cpu = build(reference)
    expected, roomy = run(cpu, vocab, pool=96, depth=1, adapter=adapter)
    # Fewer blocks than six sequences come to need.
    texts, snapshot = run(build_gpu(folder, precision), vocab, pool=20, depth=2, adapter=adapter)
    assert roomy.preemptions == 0
    assert snapshot.preemptions >= 2
    assert snapshot.prefix_hit_tokens >= 32
    assert [len(text) for text in texts] == [TOKENS] * 12
    assert texts == expected
