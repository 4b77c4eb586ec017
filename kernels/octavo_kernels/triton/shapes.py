"""The calls that serving makes, one for each shape class of each kernel: what `compile_all` compiles.

Tensors are on torch's meta device: they have a type and a shape and no memory. Sizes are those of the models that are
served; only what a kernel is specialised by matters (types, powers of two, multiples of 16, what is None).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from octavo_kernels.triton import (
    adjust,
    attention,
    experts,
    grouped,
    linear,
    logprobs,
    lora,
    rope_cache,
    rows,
    sampling,
    step,
)
from octavo_kernels.triton.ahead_of_time import Case
from octavo_kernels.triton.configurations import Configurations, Entry, for_target
from octavo_kernels.triton.targets import Target
from octavo_kernels.triton.weights import Weight

MODEL_DTYPES: Final = (torch.bfloat16, torch.float16)
TOKENS: Final = 48
VOCABULARIES: Final = (32000, 49152, 128256, 151936, 262144)
WIDTHS: Final = (576, 1024, 2048, 4096, 8192)
"""Of the residual stream: a norm takes a row whole, padded to a power of two."""


def cases(target: Target) -> Iterator[Case]:
    """Return every call for `target`."""
    configurations = for_target(target)
    chosen = list(configurations.selectable())
    for entry in chosen:
        if entry.kernel == "attention":
            yield from _attention(entry)
        if entry.kernel == "linear":
            yield from _linear(entry)
        if entry.kernel == "grouped":
            yield from _grouped(entry)
        if entry.kernel == "lora":
            yield from _lora(entry)
        if entry.kernel == "sampling":
            yield from _sampling(entry)
    yield from _dequantize(configurations)
    yield from _experts(configurations)
    yield from _adjust()
    yield from _logprobs()
    yield from _step()
    yield from _rows(configurations)
    yield from _rope_cache(configurations)


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def short(dtype: torch.dtype) -> str:
    """Return a type's short name."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8"}[dtype]


def weight(kind: str, features: int, inputs: int, dtype: torch.dtype) -> Weight:
    """Return a weight without memory; `inputs` are a multiple of 64."""
    if kind == "dense":
        return Weight(kind, empty(features, inputs, dtype=dtype))
    if kind == "fp8":
        values = empty(features, inputs, dtype=torch.float8_e4m3fn)
        return Weight(kind, values, empty(features, dtype=torch.float32))
    if kind == "int8":
        values = empty(inputs // 32, features, 32, dtype=torch.int8)
        return Weight(kind, values, empty(inputs // 64, features, dtype=torch.int32))
    values = empty(inputs // 64, features, 32, dtype=torch.uint8)
    return Weight(kind, values, empty(inputs // 32, features, dtype=torch.int32))


def _attention(entry: Entry) -> Iterator[Case]:
    """Return a class's calls: each group size, and in one of them the other types, windows and caps on scores."""
    head_dim, step = int(entry.shape["head_dim"]), entry.shape["step"]
    for group, dtype, cache, window, softcap in _attention_kinds(int(entry.shape["cache_bytes"]), entry.shape["group"]):
        extras = f"{' window' if window else ''}{' softcap' if softcap else ''}"
        label = f"{step} head_dim {head_dim} group {group} {short(dtype)} cache {short(cache)}{extras}"
        yield Case(label, partial(_attend, entry, group, dtype, cache, window, softcap))


def _attention_kinds(size: int, heads: int | str) -> list[tuple[int, torch.dtype, torch.dtype, int, float]]:
    """Return group size, types of queries and cache, window and cap on scores, for a cache of `size` bytes a value."""
    bf16, fp16, fp32, fp8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
    if size == 4:
        return [(4 if heads == 16 else 32, fp32, fp32, 0, 0.0)]
    if heads == 32:
        return [(32, bf16, bf16 if size == 2 else fp8, 0, 0.0)]
    if size == 1:
        return [(3, bf16, fp8, 0, 0.0), (4, fp16, fp8, 0, 0.0), (8, bf16, fp8, 1024, 0.0)]
    plain = [(group, bf16, bf16, 0, 0.0) for group in (1, 3, 4, 8)]
    return [*plain, (4, fp16, fp16, 0, 0.0), (4, bf16, bf16, 1024, 0.0), (2, bf16, bf16, 1024, 50.0)]


def _attend(
    entry: Entry, group: int, dtype: torch.dtype, cache: torch.dtype, window: int, softcap: float, kv_heads: int = 8
) -> None:
    head_dim, tuning = int(entry.shape["head_dim"]), entry.tuning
    q = empty(TOKENS, kv_heads * group, head_dim, dtype=dtype)
    space = attention.AttentionWorkspace(4, kv_heads * group, head_dim, "meta")
    invariant = entry.shape["step"] == "invariant"
    lists = empty(4096, dtype=torch.int32)
    work = attention.AttentionWork(
        lists, space, 4, 4, 4, 1024, invariant, window, group, tuning.block_m, tuning.block_n
    )
    attention.attention(
        q,
        empty(64, 2, kv_heads, 16, head_dim, dtype=cache),
        work,
        empty(8, 64, dtype=torch.int32),
        torch.empty_like(q),
        scale=head_dim**-0.5,
        window=window,
        softcap=softcap,
        tuning=tuning,
    )


def _linear(entry: Entry) -> Iterator[Case]:
    """Return a class's calls; where its inputs are not split, also the other types and what is added at the end."""
    kind, tuning, rows_of = str(entry.shape["kind"]), entry.tuning, entry.shape["rows"] or "any"
    dtypes = MODEL_DTYPES if entry.shape["bytes"] == 2 else (torch.float32,)
    if tuning.split_k > 1 or rows_of in (32, 64):
        dtypes = dtypes[:1]
    for dtype in dtypes:
        x, out = empty(TOKENS, 4096, dtype=dtype), empty(TOKENS, 4096, dtype=dtype)
        label = f"{kind} {rows_of} rows {short(dtype)} split {tuning.split_k}"
        call = partial(linear.linear, x, out=out, tuning=tuning)
        yield Case(label, partial(call, weight(kind, 4096, 4096, dtype)))
        if tuning.split_k == 1 and dtype == dtypes[0]:
            bias = empty(4096, dtype=torch.float32)
            yield Case(f"{label} bias", partial(call, weight(kind, 4096, 4096, dtype), bias=bias))
            uneven = partial(linear.linear, empty(TOKENS, 576, dtype=dtype), tuning=tuning)
            yield Case(f"{label} uneven", partial(uneven, weight(kind, 1536, 576, dtype)))
        if tuning.split_k == 1 and dtype != torch.float32:
            logits = partial(linear.linear, x, out=empty(TOKENS, 4096, dtype=torch.float32), tuning=tuning)
            yield Case(f"{label} to fp32", partial(logits, weight(kind, 4096, 4096, dtype)))


def _dequantize(configurations: Configurations) -> Iterator[Case]:
    """Return products of many rows, by the library after the weight is dequantised."""
    for dtype, kind in product(MODEL_DTYPES, configurations.kinds()):
        x, scratch = empty(512, 4096, dtype=dtype), empty(2048, 4096, dtype=dtype)
        if kind != "dense":
            yield Case(
                f"{kind} {short(dtype)}", partial(linear.linear_many, x, weight(kind, 4096, 4096, dtype), scratch)
            )


def _stacked(of: Weight, count: int) -> Weight:
    scales = None if of.scales is None else empty(count, *of.scales.shape, dtype=of.scales.dtype)
    return Weight(of.kind, empty(count, *of.values.shape, dtype=of.values.dtype), scales)


def _grouped(entry: Entry) -> Iterator[Case]:
    """Return a class's products: of rows that choose 8 experts, and of a row for each choice."""
    kind, tuning = str(entry.shape["kind"]), entry.tuning
    dtype = torch.bfloat16 if entry.shape["bytes"] == 2 else torch.float32
    for per_row in (1, 8) if dtype == torch.bfloat16 else (8,):
        yield Case(
            f"{kind} {entry.shape['rows'] or 'any'} rows {short(dtype)} of {per_row}",
            partial(_multiply_groups, kind, tuning, dtype, per_row),
        )


def _multiply_groups(kind: str, tuning: grouped.GroupedTuning, dtype: torch.dtype, per_row: int) -> None:
    x, weights = (
        empty(TOKENS * (1 if per_row > 1 else 8), 2048, dtype=dtype),
        _stacked(weight(kind, 2048, 2048, dtype), 128),
    )
    plan = grouped.plan_groups(empty(TOKENS, 8, dtype=torch.int32), 128, tuning.block_m)
    grouped.grouped_linear(x, weights, plan, tuning=tuning)


def _experts(configurations: Configurations) -> Iterator[Case]:
    """Return mixtures' choices and sums: 8 experts with 2 for a row (Mixtral), 128 with 8 (Qwen3-MoE)."""
    for dtype, (count, choices) in product(MODEL_DTYPES, ((8, 2), (128, 8))):
        logits = empty(TOKENS, count, dtype=torch.float32)
        yield Case(f"{short(dtype)} {choices} of {count}", partial(experts.route, logits, choices, True))
        gate_up, down = (
            _stacked(weight("dense", size, inputs, dtype), count) for size, inputs in ((1536, 2048), (2048, 768))
        )
        yield Case(
            f"{short(dtype)} {choices} of {count}",
            partial(
                experts.experts,
                empty(TOKENS, 2048, dtype=dtype),
                gate_up,
                down,
                empty(TOKENS, choices, dtype=torch.int32),
                empty(TOKENS, choices, dtype=torch.float32),
                tuning=configurations.grouped("dense", TOKENS, choices, count, dtype),
            ),
        )


def _lora(entry: Entry) -> Iterator[Case]:
    """Return adapters of a rank, whose output is a matrix of its own or a part of another."""
    dtypes = MODEL_DTYPES if entry.shape["bytes"] == 2 else (torch.float32,)
    for dtype in dtypes:
        label = f"rank {entry.shape['rank']} {entry.shape['rows']} rows {short(dtype)}"
        yield Case(label, partial(_adapt, int(entry.shape["rank"]), entry.tuning, dtype))


def _adapt(rank: int, tuning: lora.LoraTuning, dtype: torch.dtype) -> None:
    plan = grouped.plan_groups(empty(TOKENS, dtype=torch.int32), 8, tuning.block_m)
    bank = lora.make_bank(8, rank, 2048, 2048, dtype, "meta")
    lora.lora(empty(TOKENS, 2048, dtype=dtype), bank, plan, empty(TOKENS, 2048, dtype=dtype), tuning=tuning)


def _sampling(entry: Entry) -> Iterator[Case]:
    for vocabulary in VOCABULARIES:
        yield Case(f"vocabulary {vocabulary}", partial(_sample, vocabulary, entry.tuning, None))
        yield Case(
            f"vocabulary {vocabulary} adjusted", partial(_sample, vocabulary, entry.tuning, empty(8, dtype=torch.int32))
        )


def _sample(vocabulary: int, tuning: sampling.SamplingTuning, status: Tensor | None) -> None:
    draws = sampling.rows_in(empty(sampling.ROW_WORDS, 8, dtype=torch.int32))
    space = sampling.workspace(8, vocabulary, torch.device("meta"), tuning)
    logits, out = empty(8, vocabulary, dtype=torch.float32), empty(8, dtype=torch.int32)
    sampling.sample(logits, draws, out, space, status, tuning=tuning)


def _adjust() -> Iterator[Case]:
    """Return what changes logits, with all of it at hand as the runner has it, and the counts for penalties."""
    capacity = adjust.AdjustCapacity(8, 64, 64, 64)
    settings = adjust.adjust_rows_in(empty(adjust.adjust_buffer_words(capacity), dtype=torch.int32), capacity)
    for vocabulary in VOCABULARIES:
        logits, status = empty(8, vocabulary, dtype=torch.float32), empty(8, dtype=torch.int32)
        counts = empty(8, vocabulary, dtype=torch.int32)
        masks = empty(8, vocabulary // 32, dtype=torch.int32)
        call = partial(adjust.adjust, logits, settings, status)
        everything = partial(call, counts=counts, allowed_masks=masks, grammar_masks=masks)
        yield Case(f"vocabulary {vocabulary} everything", everything)
        tokens = empty(TOKENS, dtype=torch.int32)
        yield Case(f"vocabulary {vocabulary}", partial(adjust.count_tokens, counts, 1, tokens, 3))
        yield Case(f"vocabulary {vocabulary}", partial(adjust.count_sampled, counts, status, status))


def _logprobs() -> Iterator[Case]:
    for vocabulary in VOCABULARIES:
        yield Case(f"vocabulary {vocabulary}", partial(_find_logprobs, vocabulary))


def _find_logprobs(vocabulary: int) -> None:
    logits, tokens = empty(8, vocabulary, dtype=torch.float32), empty(8, dtype=torch.int32)
    space = logprobs.logprobs_workspace(8, vocabulary, torch.device("meta"))
    ids, values = empty(8, 20, dtype=torch.int32), empty(8, 20, dtype=torch.float32)
    logprobs.logprobs(logits, tokens, logprobs.Logprobs(logits[:, 0].contiguous(), tokens, ids, values), space)


def _step() -> Iterator[Case]:
    """Return a step's preparation for a model of one and of two KV groups, its end, and changes of the batch."""
    words = partial(empty, dtype=torch.int32)
    settings, batch, lengths = words(8, step.ROW_FIELDS), words(16, 4096), words(16)
    for groups in (1, 2):
        call = partial(step.prepare_step, settings, batch, lengths, words(groups, 16, 256))
        each = {"tokens": words(TOKENS), "positions": words(TOKENS), "adapters": words(TOKENS), "live": words(8)}
        slots = empty(groups, TOKENS, dtype=torch.int64)
        yield Case(f"{groups} groups", partial(call, **each, slots=slots, max_position=4096, longest=16))
    yield Case("", partial(step.finish_step, settings, words(8), words(8), batch, lengths, words(8)))
    places = empty(TOKENS, dtype=torch.int64)
    yield Case("batch", partial(step.scatter, batch, places, words(TOKENS)))


def _rows(configurations: Configurations) -> Iterator[Case]:
    for dtype in MODEL_DTYPES:
        matrix, name = partial(empty, dtype=dtype), short(dtype)
        for width in WIDTHS:
            x, scale, out = matrix(TOKENS, width), empty(width, dtype=torch.float32), matrix(TOKENS, width)
            tuning = configurations.rows(width)
            before = partial(rows.rms_norm, x, scale, 1e-5, out, tuning=tuning)
            yield Case(f"{name} width {width}", before)
            yield Case(f"{name} width {width} + residual", partial(before, residual=out))
            after = partial(rows.rms_norm_add, x, scale, 1e-5, out, tuning=tuning)
            yield Case(f"{name} width {width} after the last block", after)
            yield Case(f"{name} width {width} after a block", partial(after, next_weight=scale, out=out))
        wide, half, tuning = matrix(TOKENS, 8192), matrix(TOKENS, 4096), configurations.rows(4096)
        yield Case(f"{name} silu", partial(rows.silu_mul, wide, half, tuning))
        yield Case(f"{name} gelu", partial(rows.gelu_tanh_mul, wide, half, tuning))
        tokens = empty(TOKENS, dtype=torch.int32)
        yield Case(f"{name} embedding", partial(rows.embed, half, tokens, half, tuning=tuning))
        yield Case(f"{name} rows", partial(rows.gather_rows, half, tokens, half, tuning))
    logits = empty(TOKENS, 32000, dtype=torch.float32)
    yield Case("fp32", partial(rows.softcap, logits, 30.0, configurations.rows(32000)))


def _rope_cache(configurations: Configurations) -> Iterator[Case]:
    for dtype, (head_dim, bias, norm) in product(
        MODEL_DTYPES,
        ((64, False, False), (128, False, False), (128, True, False), (128, False, True), (256, False, True)),
    ):
        weight = empty(head_dim, dtype=torch.float32) if norm else None
        angles = empty(4096, head_dim // 2, dtype=torch.float32)
        for cache_dtype in (dtype, *((torch.float8_e4m3fn,) if configurations.target.fp8 else ())):
            qkv = empty(TOKENS, 48 * head_dim, dtype=dtype)
            extras = f"{' bias' if bias else ''}{' QK-norm' if norm else ''}"
            yield Case(
                f"{short(dtype)} head_dim {head_dim} cache {short(cache_dtype)}{extras}",
                partial(
                    rope_cache.rope_and_cache,
                    qkv,
                    empty(TOKENS, dtype=torch.int32),
                    empty(TOKENS, dtype=torch.int64),
                    angles,
                    angles,
                    empty(64, 2, 8, 16, head_dim, dtype=cache_dtype),
                    empty(TOKENS, 32, head_dim, dtype=dtype),
                    bias=empty(48 * head_dim, dtype=dtype) if bias else None,
                    q_weight=weight,
                    k_weight=weight,
                    eps=1e-6,
                    tuning=configurations.rope_cache(head_dim),
                ),
            )
