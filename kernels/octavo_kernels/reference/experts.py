"""A mixture of experts: the router's choice, and each row through its experts."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.reference.activation import silu_mul
from octavo_kernels.reference.linear import linear
from octavo_kernels.reference.tiles import SERIAL, Workers


def route(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the experts of each row, most probable first and of equal ones the first, and their weights.

    logits: [T, experts]. Weights are softmax(logits) of the chosen ones, divided by their sum if normalize (Mixtral
    always does, Qwen3-MoE where its norm_topk_prob says so). Returns ([T, top_k] int64, [T, top_k]).
    """
    chosen = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :top_k]
    weights = torch.softmax(logits, dim=-1).gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True) if normalize else weights


def experts(
    x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor, workers: Workers = SERIAL
) -> Tensor:
    """Return the sum over j of weights[:, j] · down(silu(gate · x) · up · x) of expert chosen[:, j], in this order.

    x: [T, d]; gate_up: [experts, 2 · f, d], gate above up; down: [experts, d, f]; chosen, weights: [T, k]. Rows whose
    chosen[:, j] is negative have no j-th expert. Returns [T, d].
    """
    results = x.new_zeros(*chosen.shape, x.shape[1])
    for expert in range(len(gate_up)):
        rows, choices = torch.nonzero(chosen == expert, as_tuple=True)
        hidden = silu_mul(linear(x[rows], gate_up[expert], workers=workers), workers)
        results[rows, choices] = linear(hidden, down[expert], workers=workers)
    total = torch.zeros_like(x)
    for choice in range(chosen.shape[1]):
        total += weights[:, choice, None] * results[:, choice]
    return total
