"""Many requests of mixed lengths: Octavo against `transformers`, static and continuous, with the same weights."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.report import Section, sentence_of
from benchmarks.on_gpu.serving import Job, load, random_jobs, serve
from benchmarks.on_gpu.shapes import LLAMA_8B, Shape, random_weights
from benchmarks.on_gpu.timing import make_room, synchronize

from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.weights import ModelWeights

OVER_STATIC, OVER_CONTINUOUS = 5.0, 2.0
PEER_SECONDS = 45
"""What one of the peers' runs may take: none is begun with less time left."""


def run(bench: Bench, section: Section) -> None:
    """Tell tokens a second of both, batch by batch."""
    shape = bench.pick(LLAMA_8B, LLAMA_8B.tiny())
    weights = random_weights(shape.spec, bench.device, bench.dtype)
    lengths = bench.pick(((32, 480), (16, 160)), ((2, 5), (2, 4)))
    batches = bench.pick((64, 256), (2,))
    jobs = {batch: random_jobs(2 * batch, shape.vocab, *lengths, seed=batch) for batch in batches}
    ours = {batch: _ours(bench, shape, weights, jobs[batch], batch) for batch in batches}
    for batch, rate in ours.items():
        section.add(f"Octavo, batch {batch}: {len(jobs[batch])} requests", rate, "tokens/s")
    if importlib.util.find_spec("transformers") is None:
        section.remark("transformers is not installed: there is nothing to compare with.")
        return
    make_room(bench.device)
    model = same_model(shape, weights, bench)
    for batch in batches:
        peers: dict[str, tuple[Callable[[], float], float]] = {
            "static": (lambda b=batch: _static(bench, model, jobs[b], b), OVER_STATIC),
            "continuous": (lambda b=batch: _continuous(bench, model, jobs[b], b), OVER_CONTINUOUS),
        }
        for name, (call, goal) in peers.items():
            if time.perf_counter() > bench.deadline - PEER_SECONDS:
                section.remark(f"transformers {name}, batch {batch}, was left out: the time was over.")
                continue
            try:
                rate = call()
            except Exception as error:  # noqa: BLE001 - a peer that cannot do it is told, and is no peer
                section.remark(f"transformers {name}, batch {batch}, did not run: {sentence_of(error)}")
                make_room(bench.device)
                continue
            detail = f"{rate:,.0f} tokens/s"
            section.at_least(
                f"Octavo / transformers {name}, batch {batch}", ours[batch] / rate, "x", goal, detail=detail
            )


def _ours(bench: Bench, shape: Shape, weights: ModelWeights, jobs: Sequence[Job], batch: int) -> float:
    longest = max(len(job.prompt) + job.tokens for job in jobs)
    sizes = RunnerSizes(batch, longest + 1, bench.pick(4096, 32))
    # As many blocks as the largest batch of these jobs can fill: nothing is preempted, as nothing is for the peers.
    each = sorted((-(-(len(job.prompt) + job.tokens) // 16) for job in jobs), reverse=True)
    loaded = load(shape, bench.device, bench.dtype, sizes, weights=weights, blocks=int(1.1 * sum(each[:batch])) + 8)
    serve(loaded, [job._replace(tokens=min(8, job.tokens)) for job in jobs[:batch]])
    began = time.perf_counter()
    serve(loaded, jobs)
    taken = time.perf_counter() - began
    loaded.model.layout.caches.clear()
    del loaded
    make_room(bench.device)
    return sum(job.tokens for job in jobs) / taken


def same_model(shape: Shape, weights: ModelWeights, bench: Bench) -> Any:
    """Return transformers' Llama over the very same memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, max_position_embeddings=shape.max_position, rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta}, rope_theta=shape.theta,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(bench.dtype)
    state = {"model.embed_tokens.weight": weights.embedding, "lm_head.weight": weights.head.values}
    state["model.norm.weight"] = weights.final_norm.to(bench.dtype)
    q, kv, inner = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.intermediate
    for index, layer in enumerate(weights.layers):
        assert layer.gate_up is not None
        assert layer.down is not None
        at, joined, gated = f"model.layers.{index}.", layer.qkv.values, layer.gate_up.values
        state |= {
            at + "self_attn.q_proj.weight": joined[:q],
            at + "self_attn.k_proj.weight": joined[q : q + kv],
            at + "self_attn.v_proj.weight": joined[q + kv :],
            at + "self_attn.o_proj.weight": layer.output.values,
            at + "mlp.gate_proj.weight": gated[:inner],
            at + "mlp.up_proj.weight": gated[inner:],
            at + "mlp.down_proj.weight": layer.down.values,
            at + "input_layernorm.weight": layer.attention_norm.to(bench.dtype),
            at + "post_attention_layernorm.weight": layer.mlp_norm.to(bench.dtype),
        }
    model.load_state_dict(state, assign=True)
    # Buffers are no part of the state: rotary frequencies are made anew where the weights are.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(bench.device)
    return model.eval()


def _static(bench: Bench, model: Any, jobs: Sequence[Job], batch: int) -> float:
    """Return tokens a second of batches that are padded, and run until their longest has ended."""

    def generate(part: Sequence[Job], tokens: int) -> None:
        width = max(len(job.prompt) for job in part)
        ids = torch.zeros(len(part), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(part):
            ids[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, width - len(job.prompt) :] = 1
        model.generate(
            input_ids=ids.to(bench.device), attention_mask=mask.to(bench.device), max_new_tokens=tokens,
            do_sample=False,
        )  # fmt: skip

    with torch.inference_mode():
        generate(jobs[:batch], 4)
        synchronize(bench.device)
        began = time.perf_counter()
        for start in range(0, len(jobs), batch):
            part = jobs[start : start + batch]
            generate(part, max(job.tokens for job in part))
        synchronize(bench.device)
    return sum(job.tokens for job in jobs) / (time.perf_counter() - began)


def _continuous(bench: Bench, model: Any, jobs: Sequence[Job], batch: int) -> float:
    """Return tokens a second of its continuous batching, each request with its own length, its start-up left out."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(do_sample=False, max_new_tokens=max(job.tokens for job in jobs), pad_token_id=0)
    room = {"num_blocks": 8, "max_batch_tokens": 64} if bench.tiny else {"max_memory_percent": 0.7}
    options = ContinuousBatchingConfig(max_requests_per_batch=batch, **room)
    with (
        torch.inference_mode(),
        model.continuous_batching_context_manager(
            generation_config=settings, continuous_batching_config=options
        ) as manager,
    ):
        _submit_and_wait(manager, [job._replace(tokens=4) for job in jobs[:batch]], "warm")
        began = time.perf_counter()
        generated = _submit_and_wait(manager, jobs, "job")
        taken = time.perf_counter() - began
    wanted = sum(job.tokens for job in jobs)
    if generated < wanted:
        raise RuntimeError(f"it generated {generated} of {wanted} tokens")
    return wanted / taken


def _submit_and_wait(manager: Any, jobs: Sequence[Job], name: str) -> int:
    for number, job in enumerate(jobs):
        manager.add_request(list(job.prompt), request_id=f"{name}-{number}", max_new_tokens=job.tokens, eos_token_id=-1)
    left, generated, deadline = len(jobs), 0, time.monotonic() + 60
    while left:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            generated += len(result.generated_tokens)
            left -= 1
        elif result is None and (not manager.is_running() or time.monotonic() > deadline):
            raise RuntimeError(f"it ended or stood still with {left} of {len(jobs)} requests open")
    return generated
