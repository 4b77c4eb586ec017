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

from octavo_kernels.triton import rope_cache, rows
from octavo_kernels.triton.ahead_of_time import Case
from octavo_kernels.triton.targets import Target

MODEL_DTYPES: Final = (torch.bfloat16, torch.float16)
TOKENS: Final = 48
WIDTHS: Final = (576, 1024, 2048, 4096, 8192)
"""Of the residual stream: a norm takes a row whole, padded to a power of two."""


def cases(target: Target) -> Iterator[Case]:
    """Return every call for `target`."""
    yield from _rows()
    yield from _rope_cache(target)


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def short(dtype: torch.dtype) -> str:
    """Return a type's short name."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8"}[dtype]


def cache_dtypes(target: Target, model: torch.dtype) -> list[torch.dtype]:
    """Return the types of KV cache that a model of this type is served with."""
    return [model, torch.float8_e4m3fn] if target.fp8 else [model]


def _rows() -> Iterator[Case]:
    for dtype in MODEL_DTYPES:
        matrix = partial(empty, dtype=dtype)
        name = short(dtype)
        for width in WIDTHS:
            x, weight, out = matrix(TOKENS, width), empty(width, dtype=torch.float32), matrix(TOKENS, width)
            yield Case(f"{name} width {width}", partial(rows.rms_norm, x, weight, 1e-5, out))
            yield Case(f"{name} width {width} + residual", partial(rows.rms_norm, x, weight, 1e-5, out, out))
        yield Case(
            f"{name} after the block", partial(rows.rms_norm_add, x, weight, 1e-5, out, weight, matrix(*x.shape))
        )
        yield Case(f"{name} after the last block", partial(rows.rms_norm_add, x, weight, 1e-5, out))
        wide = matrix(TOKENS, 8192)
        yield Case(f"{name} silu", partial(rows.silu_mul, wide, matrix(TOKENS, 4096)))
        yield Case(f"{name} gelu", partial(rows.gelu_tanh_mul, wide, matrix(TOKENS, 4096)))
        tokens = empty(TOKENS, dtype=torch.int32)
        yield Case(f"{name} embedding", partial(rows.embed, wide, tokens, matrix(TOKENS, 8192)))
        yield Case(f"{name} rows", partial(rows.gather_rows, wide, tokens, matrix(TOKENS, 8192)))
    yield Case("fp32", partial(rows.softcap, empty(TOKENS, 32000, dtype=torch.float32), 30.0))


def _rope_cache(target: Target) -> Iterator[Case]:
    for dtype, (head_dim, bias, norm) in product(
        MODEL_DTYPES,
        ((64, False, False), (128, False, False), (128, True, False), (128, False, True), (256, False, True)),
    ):
        weight = empty(head_dim, dtype=torch.float32) if norm else None
        angles = empty(4096, head_dim // 2, dtype=torch.float32)
        for cache_dtype in cache_dtypes(target, dtype):
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
                ),
            )
