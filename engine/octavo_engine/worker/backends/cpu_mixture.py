"""A layer's feed-forward block as a mixture of experts, over the kernels one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.spec import LayerSpec, MoESpec, UnsupportedModelError
from octavo_kernels.cpu import Experts, Pool, Weight, experts, linear, rms_norm, route


class Mixture:
    """Router and experts of one layer; `add` is its feed-forward block."""

    def __init__(
        self, spec: LayerSpec, moe: MoESpec, norm: NDArray[np.float32], index: int, matrices: dict[str, Weight]
    ) -> None:
        """Take the layer's matrices. Raises UnsupportedModelError for what no known mixture has."""
        if spec.post_mlp_norm is not None or spec.mlp.bias:
            raise UnsupportedModelError("Experts with biases or a norm behind them are not served yet.")
        at = f"layers.{index}"
        self._norm, self._eps, self._moe = norm, spec.mlp_norm.eps, moe
        self._router = matrices[f"{at}.router"]
        self._experts = Experts(
            [matrices[f"{at}.experts.{expert}.gate_up"] for expert in range(moe.num_experts)],
            [matrices[f"{at}.experts.{expert}.down"] for expert in range(moe.num_experts)],
            spec.mlp.activation,
        )

    def add(self, pool: Pool, x: NDArray[np.float32]) -> None:
        """x [T, d] += what the chosen experts make of norm(x), by their shares."""
        moe, rows = self._moe, len(x)
        normed = np.empty_like(x)
        rms_norm(pool, x, self._norm, self._eps, normed)
        scores = np.empty((rows, moe.num_experts), np.float32)
        linear(pool, normed, self._router, scores)
        chosen = np.empty((rows, moe.experts_per_token), np.int32)
        shares = np.empty((rows, moe.experts_per_token), np.float32)
        route(pool, scores, chosen, shares, moe.normalize_weights)
        experts(pool, normed, self._experts, chosen, shares, x, x)
