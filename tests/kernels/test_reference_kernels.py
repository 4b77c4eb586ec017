"""The reference kernels against their definitions in float64, at the edges of tiles, chunks and vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from octavo_kernels.reference import TILE_ROWS, Workers, linear, rms_norm, rope, silu_mul, write_cache
from octavo_kernels.reference.tiles import feature_chunks

ROWS = (0, 1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 57, 130)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def float64(x: torch.Tensor) -> NDArray[np.float64]:
    return x.double().numpy()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("features", "depth"), [(1, 1), (7, 33), (512, 64), (513, 47), (1100, 96)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_the_product(rows: int, features: int, depth: int, biased: bool) -> None:
    x, weight = random(rows, depth), random(features, depth, seed=1)
    bias = random(features, seed=2) if biased else None
    expected = float64(x) @ float64(weight).T + (0 if bias is None else float64(bias))
    np.testing.assert_allclose(linear(x, weight, bias).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("features", [1, 15, 16, 17, 511, 512, 513, 960, 3072])
def test_feature_chunks_cover_every_feature_once(features: int) -> None:
    covered = [feature for chunk in feature_chunks(features) for feature in range(features)[chunk]]
    assert covered == list(range(features))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 31, 48, 576])
def test_rms_norm_adds_the_residual_first(rows: int, width: int) -> None:
    x, residual, weight = random(rows, width), random(rows, width, seed=1), random(width, seed=2)
    total = float64(x + residual)
    expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * float64(weight)
    normed, summed = rms_norm(x, weight, 1e-5, residual)
    np.testing.assert_allclose(normed.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(summed, x + residual)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 31, 77, 1536])
def test_silu_mul_gates(rows: int, width: int) -> None:
    gate_up = random(rows, 2 * width) * 5
    gate, up = np.split(float64(gate_up), 2, axis=1)
    np.testing.assert_allclose(silu_mul(gate_up).numpy(), gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


def test_silu_of_large_values_stays_finite() -> None:
    assert silu_mul(torch.tensor([[-200.0, 200.0, 3.0, 3.0]])).tolist() == [[0.0, 600.0]]


@pytest.mark.parametrize("rows", [0, 1, 17])
@pytest.mark.parametrize(("head_dim", "rotated"), [(2, 2), (10, 10), (64, 64), (16, 6)])
def test_rope_turns_pairs_of_halves_by_their_angle(rows: int, head_dim: int, rotated: int) -> None:
    x, angles = random(rows, 3, head_dim), random(rows, rotated // 2, seed=1)
    half = rotated // 2
    pairs = float64(x)[..., :half] + 1j * float64(x)[..., half:rotated]
    turned = pairs * np.exp(1j * float64(angles))[:, None]
    expected = np.concatenate([turned.real, turned.imag, float64(x)[..., rotated:]], axis=-1)
    np.testing.assert_allclose(rope(x, angles.cos(), angles.sin()).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_write_cache_touches_its_slots_only() -> None:
    cache, values = torch.zeros(3, 4, 2, 5), random(4, 2, 5)
    write_cache(cache, values, torch.tensor([11, -1, 0, 4]))
    flat = cache.view(12, 2, 5)
    assert torch.equal(flat[[11, 0, 4]], values[[0, 2, 3]])
    assert not flat[[1, 2, 3, 5, 6, 7, 8, 9, 10]].any()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_workers_do_every_item_once(threads: int, count: int) -> None:
    done = [0] * count

    def work(item: int) -> None:
        done[item] += 1

    Workers(threads).run(count, work)
    assert done == [1] * count


@pytest.mark.parametrize("failing", [0, 50, 99])
def test_an_error_in_any_item_reaches_the_caller(failing: int) -> None:
    def work(item: int) -> None:
        if item == failing:
            raise RuntimeError("item failed")

    with pytest.raises(RuntimeError, match="item failed"):
        Workers(3).run(100, work)
