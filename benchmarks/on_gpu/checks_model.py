"""The whole runner on the device: with graphs, without, and the model written out in plain torch, token for token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.on_gpu.checks_case import Case
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.serving import Loaded, load, random_jobs, serve
from benchmarks.on_gpu.shapes import LLAMA_8B, QWEN_30B, Shape
from torch import Tensor

from octavo_engine.model.rope import rope_table
from octavo_engine.model.spec import LayerSpec
from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.weights import LayerWeights, ModelWeights
from octavo_kernels.triton.weights import dequantize


def model_cases(bench: Bench) -> Iterator[Case]:
    """Yield the comparisons: small models in float32, prompts cut into chunks, more requests than slots."""
    for shape in (LLAMA_8B, QWEN_30B):
        small = shape.tiny()
        if not bench.tiny:
            small = small._replace(vocab=2000, hidden=256, layers=4, heads=8, kv_heads=2, head_dim=64, intermediate=512)
        yield Case("the runner", f"{shape.name}'s kind, greedy", 0.0, lambda s=small: _tokens(bench, s, "dense"))
    yield Case("the runner", "int4", 0.0, lambda: _tokens(bench, small, "int4"))
    if bench.cuda:
        yield Case("the runner", "graphs and eager, seeded sampling", 0.0, lambda: _graphs(bench, small))


def _load(bench: Bench, shape: Shape, kind: str, *, graphs: bool, weights: ModelWeights | None = None) -> Loaded:
    # Few tokens a step and few slots: prompts are chunked, requests wait, decode rows meet chunks.
    sizes = RunnerSizes(bench.pick(6, 2), bench.pick(256, 64), bench.pick(48, 16))
    return load(shape, bench.device, torch.float32, sizes, kind=kind, invariant=True, weights=weights, graphs=graphs)


def _tokens(bench: Bench, shape: Shape, kind: str) -> float:
    """Return how many tokens differ from those of the model in plain torch, beyond what rounding explains."""
    loaded = _load(bench, shape, kind, graphs=True)
    prompts, wanted = bench.pick(((10, 120), (4, 24)), ((3, 20), (2, 3)))
    jobs = random_jobs(bench.pick(10, 3), shape.vocab, prompts, wanted)
    _, told = serve(loaded, jobs)
    wrong = 0
    for number, job in enumerate(jobs):
        tokens = torch.tensor([*job.prompt, *told[number]], device=bench.device)
        logits = plain_logits(shape, loaded.weights, tokens[:-1])[len(job.prompt) - 1 :]
        best = logits.max(dim=-1).values
        taken = logits.gather(1, tokens[len(job.prompt) :, None])[:, 0]
        # Where two tokens are as good to within rounding, either is right.
        wrong += int((best - taken > 1e-3 * logits.abs().max()).sum()) + (len(told[number]) != job.tokens)
    return float(wrong)


def _graphs(bench: Bench, shape: Shape) -> float:
    """Return how many requests differ between captured and eager steps: every bit is the same, so none may."""
    captured = _load(bench, shape, "int4", graphs=True)
    eager = _load(bench, shape, "int4", graphs=False, weights=captured.weights)
    jobs = random_jobs(12, shape.vocab, (10, 120), (4, 40))
    _, first = serve(captured, jobs, temperature=0.9)
    _, second = serve(eager, jobs, temperature=0.9)
    return float(sum(first[number] != second[number] for number in first))


def plain_logits(shape: Shape, weights: ModelWeights, tokens: Tensor) -> Tensor:
    """Return float32 [T, vocabulary] of one sequence, computed at once and with nothing but torch."""
    spec = shape.spec
    cos, sin = (
        torch.from_numpy(part).to(tokens.device)
        for part in rope_table(spec.layers[0].attention.rope, shape.max_position)
    )
    x = weights.embedding.float()[tokens]
    for layer, own in zip(spec.layers, weights.layers, strict=True):
        x = x + _attend(layer, own, _norm(x, own.attention_norm, shape.eps), cos[: len(x)], sin[: len(x)])
        x = x + _feed(layer, own, _norm(x, own.mlp_norm, shape.eps))
    return _norm(x, weights.final_norm, shape.eps) @ weights.head.values.float().t()


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _attend(layer: LayerSpec, own: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    spec = layer.attention
    parts = (x @ dequantize(own.qkv).t()).view(len(x), -1, spec.head_dim)
    q, k, v = parts.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
    if own.q_norm is not None and own.k_norm is not None and spec.qk_norm is not None:
        q, k = _norm(q, own.q_norm, spec.qk_norm.eps), _norm(k, own.k_norm, spec.qk_norm.eps)
    q, k = _turn(q, cos, sin), _turn(k, cos, sin)
    k, v = (part.repeat_interleave(spec.group_size, dim=1) for part in (k, v))
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))
    scores = q @ k.transpose(1, 2) * spec.scale
    hidden = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
    attended = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
    return attended.transpose(0, 1).reshape(len(x), -1) @ dequantize(own.output).t()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _feed(layer: LayerSpec, own: LayerWeights, x: Tensor) -> Tensor:
    def through(gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (x @ gate_up.t()).chunk(2, dim=-1)
        return (F.silu(gate) * up) @ down.t()

    if own.experts is None or layer.mlp.moe is None:
        assert own.gate_up is not None
        assert own.down is not None
        return through(dequantize(own.gate_up), dequantize(own.down))
    weights = torch.softmax(x @ own.experts.router.values.float().t(), dim=-1)
    shares, chosen = weights.topk(layer.mlp.moe.experts_per_token, dim=-1)
    spread = torch.zeros_like(weights).scatter(1, chosen, shares / shares.sum(-1, keepdim=True))
    gate_up, down = dequantize(own.experts.gate_up), dequantize(own.experts.down)
    return sum(spread[:, each, None] * through(gate_up[each], down[each]) for each in range(len(gate_up)))
