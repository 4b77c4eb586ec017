"""RMS norm, with the residual addition before it."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.reference.tiles import SERIAL, TILE_ROWS, Workers, pad, tile


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, workers: Workers = SERIAL
) -> tuple[Tensor, Tensor]:
    """Return (norm(s) · weight, s) with s = x + residual, norm(s) = s / sqrt(mean(s²) + eps).

    x, residual: [T, d]; weight: [d]. The root is taken and divided by, both correctly rounded: torch.rsqrt rounds
    differently within a vector register and at its edge.
    """
    total = x if residual is None else x + residual
    rows, padded = total.shape[0], pad(total)
    result = torch.empty_like(padded)

    def normalize(index: int) -> None:
        part = padded[tile(index)]
        root = (part * part).mean(-1, keepdim=True).add_(eps).sqrt_()
        torch.mul(part / root, weight, out=result[tile(index)])

    workers.run(padded.shape[0] // TILE_ROWS, normalize)
    return result[:rows], total
