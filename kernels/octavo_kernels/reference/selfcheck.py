"""Does a row's place within its tile change its numbers on this machine? The construction in `tiles.py` needs a no.

Which kernel a matrix library runs is decided by the processor, so the answer is asked where the model will run, with
the shapes it will run: identical rows go in, and must come out identical.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.reference.activation import silu_mul
from octavo_kernels.reference.attention import paged_attention, plan_attention
from octavo_kernels.reference.linear import linear
from octavo_kernels.reference.norm import rms_norm
from octavo_kernels.reference.tiles import TILE_ROWS


class NotRowInvariantError(RuntimeError):
    """The matrix library here computes equal rows differently; the message says how to make it stop."""


def check_linear(weights: Iterable[Tensor]) -> None:
    """Check products with each shape among `weights` ([N, K]) once."""
    seen: set[tuple[int, ...]] = set()
    for weight in weights:
        if (shape := tuple(weight.shape)) not in seen:
            seen.add(shape)
            _require_equal_rows(linear(_equal_rows(weight.shape[1]), weight), f"the product with {shape}")


def check_elementwise(hidden_size: int, intermediate_size: int) -> None:
    """Check norm and activation at a model's widths."""
    ones = torch.ones(hidden_size)
    _require_equal_rows(rms_norm(_equal_rows(hidden_size), ones, 1e-6)[0], "the norm")
    _require_equal_rows(silu_mul(_equal_rows(2 * intermediate_size)), "the activation")


def check_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
    """Check a tile of equal queries that see the same context, in one whole partition and a part of the next."""
    context = 300
    blocks = -(-context // block_size)
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(2, blocks, block_size, num_kv_heads, head_dim, generator=generator)
    plan = plan_attention(
        np.array([0, TILE_ROWS], dtype=np.int32),
        np.full(TILE_ROWS, context - 1, dtype=np.int32),
        np.array([context], dtype=np.int32),
        np.arange(blocks, dtype=np.int32)[None],
        block_size,
        num_heads // num_kv_heads,
    )
    q = _equal_rows(num_heads * head_dim).view(TILE_ROWS, num_heads, head_dim)
    _require_equal_rows(paged_attention(q, cache, plan, head_dim**-0.5).flatten(1), "attention")


def _equal_rows(width: int) -> Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(0)).repeat(TILE_ROWS, 1)


def _require_equal_rows(rows: Tensor, what: str) -> None:
    if not bool((rows == rows[0]).all()):
        raise NotRowInvariantError(
            f"On this processor {what} depends on a row's place in the batch, so outputs would depend on other "
            "requests; set MKL_CBWR=COMPATIBLE in the engine's environment."
        )
