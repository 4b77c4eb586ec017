"""A model's products on the device: which kernel multiplies what, by the step's rows and the weight's kind."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from octavo_engine.model.spec import Activation, MoESpec
from octavo_engine.worker.gpu.weights import Experts
from octavo_kernels.triton.configurations import Configurations
from octavo_kernels.triton.experts import experts, route
from octavo_kernels.triton.grouped import GroupPlan, plan_groups
from octavo_kernels.triton.linear import dense, linear, linear_many
from octavo_kernels.triton.lora import LoraBank, LoraTuning, lora
from octavo_kernels.triton.weights import Weight

SCRATCH_BYTES: Final = 64 << 20
"""For weights that are dequantised before many rows are multiplied by them: the pieces of a larger one take turns."""


class Products:
    """Linear layers over one set of configurations.

    Few rows read a quantised weight as it is stored; many are multiplied by the vendor's library. With `invariant` one
    kernel of one configuration multiplies everything, so that a row's bits do not depend on its company.
    """

    def __init__(
        self, configurations: Configurations, dtype: torch.dtype, device: torch.device, *, invariant: bool
    ) -> None:
        """`dtype`: the activations'."""
        self.configurations = configurations
        self.invariant = invariant
        self._scratch = torch.empty(SCRATCH_BYTES // dtype.itemsize, dtype=dtype, device=device)

    def __call__(self, x: Tensor, weight: Weight, *, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return x · weightᵀ + bias, [T, N], in `out` or anew in x's type. x: [T, K]."""
        rows, in_type = len(x), out is None or out.dtype == x.dtype
        if not self.invariant and weight.kind == "dense" and in_type:
            return dense(x, weight, out, bias=bias)
        if self.invariant or weight.kind == "dense" or rows <= self.configurations.few_rows(weight.kind):
            tuning = self.configurations.linear(
                weight.kind, rows, weight.rows, weight.columns, x.dtype, invariant=self.invariant
            )
            return linear(x, weight, out, bias=bias, tuning=tuning)
        pieces = len(self._scratch) // weight.columns
        scratch = self._scratch[: pieces * weight.columns].view(pieces, weight.columns)
        return linear_many(x, weight, scratch, out, bias=bias)

    def mixture(self, x: Tensor, weights: Experts, moe: MoESpec, activation: Activation) -> Tensor:
        """Return the sum of each row's experts, [T, d], by their shares. x: [T, d]."""
        logits = self(x.float(), weights.router)
        chosen, shares = route(logits, moe.experts_per_token, moe.normalize_weights)
        tuning = self.configurations.grouped(
            weights.down.kind, len(x), moe.experts_per_token, moe.num_experts, x.dtype, invariant=self.invariant
        )
        return experts(x, weights.gate_up, weights.down, chosen, shares, activation=activation, tuning=tuning)

    def group_adapters(self, adapters: Tensor, slots: int) -> GroupPlan:
        """Return how a step's tokens are grouped by their adapters, int32 [T], -1 for none: one plan for all layers."""
        return plan_groups(adapters, slots, self._lora(1, len(adapters)).block_m)

    def adapt(self, x: Tensor, bank: LoraBank | None, plan: GroupPlan, out: Tensor) -> None:
        """Add to a product's output [T, N] what the tokens' adapters add; x: [T, K]. No bank: no adapter changes it."""
        if bank is not None:
            # The plan is one for banks of all ranks, whose tunings may differ.
            lora(x, bank, plan, out, tuning=self._lora(bank.rank, len(x))._replace(block_m=plan.block_m))

    def _lora(self, rank: int, rows: int) -> LoraTuning:
        return self.configurations.lora(rank, rows, self._scratch.dtype)
