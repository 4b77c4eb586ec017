"""Linear layers, tile by tile."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.reference.tiles import SERIAL, TILE_ROWS, Workers, feature_chunks, pad, tile


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, workers: Workers = SERIAL) -> Tensor:
    """Return x · weightᵀ + bias.

    x: [T, K]; weight: [N, K]; bias: [N] or None. Returns [T, N] in x's type.
    """
    rows, padded = x.shape[0], pad(x)
    tiles, chunks = padded.shape[0] // TILE_ROWS, feature_chunks(weight.shape[0])
    result = x.new_empty(padded.shape[0], weight.shape[0])

    def product(item: int) -> None:
        # Tiles change fastest: a chunk of the weights stays in the core's cache while all rows pass.
        chunk, index = chunks[item // tiles], tile(item % tiles)
        target = result[index, chunk]
        torch.mm(padded[index], weight[chunk].t(), out=target)
        if bias is not None:
            target += bias[chunk]

    workers.run(tiles * len(chunks), product)
    return result[:rows]
