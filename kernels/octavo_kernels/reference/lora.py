"""Low-rank adapters, another one for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_kernels.reference.linear import linear
from octavo_kernels.reference.tiles import SERIAL, Workers


def lora(
    x: Tensor,
    adapters: Sequence[tuple[Tensor, Tensor, float]],
    index: Tensor,
    out: Tensor,
    workers: Workers = SERIAL,
) -> None:
    """Add scale · (x · aᵀ) · bᵀ of each row's adapter to out (Hu et al., 2021).

    x: [T, d]; adapters: (a [rank, d], b [n, rank], scale); index: [T], which adapter, negative: none; out: [T, n].
    """
    for number, (a, b, scale) in enumerate(adapters):
        rows = torch.nonzero(index == number)[:, 0]
        ranks = linear(x[rows], a.to(x.dtype), workers=workers) * scale
        out[rows] += linear(ranks, b.to(x.dtype), workers=workers)
