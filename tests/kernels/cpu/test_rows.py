"""RMS norm and the gated activation against the reference, at the edges of registers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_kernels.cpu._native import Pool, activate, rms_norm
from octavo_kernels.cpu.weights import panel_columns
from octavo_kernels.reference import rms_norm as reference_norm
from octavo_kernels.reference import silu_mul as reference_silu_mul

WIDTHS = (1, 15, 16, 17, 64, 576)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def in_panels(gate_up: np.ndarray) -> np.ndarray:
    """Return [gate | up] as a gated product has them before its gate."""
    features = gate_up.shape[1] // 2
    gate, columns = panel_columns(features)
    panels = np.full((len(gate_up), columns), np.nan, np.float32)
    panels[:, gate], panels[:, gate + 16] = gate_up[:, :features], gate_up[:, features:]
    return panels


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_the_norm_is_the_references(pool: Pool, rows: int, width: int) -> None:
    x, residual, weight = floats(rows, width), floats(rows, width, seed=1), floats(width, seed=2)
    out, total = np.empty_like(x), np.empty_like(x)
    rms_norm(pool, x, weight, 1e-6, out, residual, total)
    wanted, wanted_total = reference_norm(*map(torch.from_numpy, (x, weight)), 1e-6, torch.from_numpy(residual))
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(total, wanted_total)
    rms_norm(pool, x, weight, 1e-6, out)
    np.testing.assert_allclose(out, reference_norm(*map(torch.from_numpy, (x, weight)), 1e-6)[0], rtol=1e-5, atol=1e-6)


def test_a_norm_may_write_over_its_input(pool: Pool) -> None:
    x, residual, weight = floats(3, 40), floats(3, 40, seed=1), floats(40, seed=2)
    out, total = np.empty_like(x), x + residual
    rms_norm(pool, x, weight, 1e-6, out, residual, x)
    assert np.array_equal(x, total)
    rms_norm(pool, total, weight, 1e-6, total)
    assert np.array_equal(total, out)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_the_activation_is_the_references(pool: Pool, rows: int, width: int) -> None:
    gate_up, out = floats(rows, 2 * width) * 8, np.empty((rows, width), np.float32)
    activate(pool, in_panels(gate_up), out)
    np.testing.assert_allclose(out, reference_silu_mul(torch.from_numpy(gate_up)), rtol=1e-5, atol=1e-6)


def test_the_activation_at_its_ends(pool: Pool) -> None:
    gate = np.array([[0.0, 100.0, -100.0, 1e30, -1e30, np.inf, np.nan]], dtype=np.float32)
    out = np.empty((1, 7), np.float32)
    activate(pool, in_panels(np.concatenate([gate, np.ones_like(gate)], axis=1)), out)
    assert out[0, 0] == 0
    assert out[0, 1] == 100
    assert -1e-35 < out[0, 2] < 0
    assert out[0, 3] == np.float32(1e30)
    assert np.isinf(out[0, 5])
    assert np.isnan(out[0, 6])


def test_every_variant_gives_the_same_bits(pools: dict[str, Pool]) -> None:
    x, weight, gate_up = floats(20, 577), floats(577, seed=1), floats(20, 154, seed=2) * 4
    results = set()
    for pool in pools.values():
        normed, activated = np.empty_like(x), np.empty((20, 77), np.float32)
        rms_norm(pool, x, weight, 1e-6, normed)
        activate(pool, in_panels(gate_up), activated)
        results.add(normed.tobytes() + activated.tobytes())
    assert len(results) == 1
