"""The gated activation of the feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.reference.tiles import SERIAL, TILE_ROWS, Workers, pad, tile


def silu_mul(gate_up: Tensor, workers: Workers = SERIAL) -> Tensor:
    """Return silu(gate) · up, silu(x) = x / (1 + exp(-x)), for gate_up = [gate | up].

    gate_up: [T, 2 · d]; returns [T, d]. Written out because torch's silu rounds differently at a vector's edge.
    """
    width = gate_up.shape[1] // 2
    rows, padded = gate_up.shape[0], pad(gate_up)
    result = padded.new_empty(padded.shape[0], width)

    def activate(index: int) -> None:
        gate, up = torch.split(padded[tile(index)], width, dim=1)
        denominator = torch.exp(torch.neg(gate)).add_(1.0)
        torch.mul(gate / denominator, up, out=result[tile(index)])

    workers.run(padded.shape[0] // TILE_ROWS, activate)
    return result[:rows]
