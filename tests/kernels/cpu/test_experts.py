"""Mixtures of experts against the reference: the router's choice, grouped products, row invariance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Experts, Pool, experts, route
from octavo_kernels.cpu.weights import pack
from octavo_kernels.reference import experts as reference_experts
from octavo_kernels.reference import route as reference_route
from tests.kernels.cpu.weight_samples import sample

Floats = NDArray[np.float32]
KINDS = ("F32", "BF16", "Q8_0", "Q4_1", "INT8", "INT4")


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def routed(pool: Pool, logits: Floats, top_k: int, normalize: bool) -> tuple[NDArray[np.int32], Floats]:
    chosen = np.full((len(logits), top_k), -7, np.int32)
    weights = np.full((len(logits), top_k), np.nan, np.float32)
    route(pool, logits, chosen, weights, normalize)
    return chosen, weights


class Layer(NamedTuple):
    packed: Experts
    gate_up: torch.Tensor
    down: torch.Tensor


def layer_of(pool: Pool, kind: str, count: int, width: int, features: int) -> Layer:
    ups, downs, up_values, down_values = [], [], [], []
    for e in range(count):
        source, target, plane, meaning = sample(kind, 2 * features, width, seed=2 * e)
        ups.append(pack(pool, source, [plane[:features], plane[features:]], width, target, gate_up=True))
        up_values.append(meaning)
        source, target, plane, meaning = sample(kind, width, features, seed=2 * e + 1)
        downs.append(pack(pool, source, [plane], features, target))
        down_values.append(meaning)
    return Layer(Experts(ups, downs), *(torch.from_numpy(np.stack(each)) for each in (up_values, down_values)))


def through(pool: Pool, layer: Layer, x: Floats, chosen: NDArray[np.int32], weights: Floats) -> Floats:
    out = np.full_like(x, np.nan)
    experts(pool, x, layer.packed, chosen, weights, out)
    return out


@given(
    rows=st.integers(0, 20),
    count=st.integers(1, 70),
    top_k=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
    normalize=st.booleans(),
    levels=st.sampled_from([2, 5, 10**6]),
)
@settings(max_examples=60, deadline=None)
def test_the_router_chooses_as_the_reference_does(
    pools: dict[str, Pool], rows: int, count: int, top_k: int, seed: int, normalize: bool, levels: int
) -> None:
    # Few levels make ties.
    logits = np.random.default_rng(seed).integers(0, levels, (rows, count)).astype(np.float32) * np.float32(8 / levels)
    top_k = min(top_k, count)
    wanted, shares = reference_route(torch.from_numpy(logits), top_k, normalize)
    for pool in pools.values():
        chosen, weights = routed(pool, logits, top_k, normalize)
        assert np.array_equal(chosen, wanted)
        np.testing.assert_allclose(weights, shares, rtol=2e-6)


def test_every_variant_routes_with_the_same_bits(pools: dict[str, Pool]) -> None:
    logits = floats(33, 60) * 3
    assert len({routed(pool, logits, 4, True)[1].tobytes() for pool in pools.values()}) == 1


def test_logits_that_are_not_numbers_choose_experts_that_exist(pool: Pool) -> None:
    logits = floats(3, 9)
    logits[1] = np.nan
    logits[2, 4] = np.inf
    chosen, weights = routed(pool, logits, 3, True)
    assert sorted(chosen[1].tolist()) == [0, 1, 2]
    assert np.isnan(weights[1:]).any(axis=1).all()
    assert np.isfinite(weights[0]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (8, 2), (20, 5)])
@pytest.mark.parametrize("rows", [0, 1, 2, 40])
def test_rows_go_through_their_experts(pool: Pool, kind: str, count: int, top_k: int, rows: int) -> None:
    layer = layer_of(pool, kind, count, 64, 96)
    x = floats(rows, 64, seed=9)
    # Few experts are popular: some have no row, some many.
    logits = floats(rows, count, seed=1) + np.linspace(0, 6, count, dtype=np.float32)
    chosen, weights = routed(pool, logits, top_k, True)
    result = through(pool, layer, x, chosen, weights)
    wanted = reference_experts(
        torch.from_numpy(x), layer.gate_up, layer.down, torch.from_numpy(chosen), torch.from_numpy(weights)
    ).numpy()
    size = np.abs(wanted).max(initial=1e-6)
    assert np.abs(result - wanted).max(initial=0) <= {"F32": 1e-5, "BF16": 0.02}.get(kind, 0.03) * size


@given(
    count=st.integers(1, 9),
    width=st.integers(1, 70),
    features=st.integers(1, 70),
    rows=st.integers(0, 30),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_float_experts_take_any_shape(pool: Pool, count: int, width: int, features: int, rows: int, seed: int) -> None:
    layer = layer_of(pool, "F32", count, width, features)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(-1, count, (rows, 3)).astype(np.int32)
    weights, x = rng.random((rows, 3), dtype=np.float32), floats(rows, width, seed=seed)
    wanted = reference_experts(
        torch.from_numpy(x), layer.gate_up, layer.down, torch.from_numpy(chosen), torch.from_numpy(weights)
    )
    np.testing.assert_allclose(through(pool, layer, x, chosen, weights), wanted, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_is_the_row_among_others(pool: Pool, kind: str) -> None:
    layer = layer_of(pool, kind, 6, 64, 96)
    x = floats(64, 64)
    chosen, weights = routed(pool, floats(64, 6, seed=1), 3, False)
    together = through(pool, layer, x, chosen, weights)
    alone = [through(pool, layer, *(each[i : i + 1] for each in (x, chosen, weights))) for i in range(64)]
    assert np.array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "INT4"])
def test_quantised_experts_are_the_same_in_every_variant(pools: dict[str, Pool], kind: str) -> None:
    chosen, weights = routed(pools["portable"], floats(9, 4, seed=1), 2, True)
    results = {
        through(pool, layer_of(pool, kind, 4, 64, 96), floats(9, 64), chosen, weights).tobytes()
        for pool in pools.values()
    }
    assert len(results) == 1


def test_the_residual_is_added_and_may_be_the_output(pool: Pool) -> None:
    layer = layer_of(pool, "F32", 4, 40, 24)
    x, residual = floats(7, 40), floats(7, 40, seed=3)
    chosen, weights = routed(pool, floats(7, 4, seed=1), 2, True)
    plain = through(pool, layer, x, chosen, weights)
    in_place = residual.copy()
    experts(pool, x, layer.packed, chosen, weights, in_place, in_place)
    np.testing.assert_allclose(in_place, plain + residual, rtol=1e-5, atol=1e-4)


def test_wrong_experts_are_named(pool: Pool) -> None:
    layer = layer_of(pool, "F32", 2, 8, 8)
    with pytest.raises(ValueError, match="Expert 2 is not among the layer's 2"):
        through(pool, layer, floats(1, 8), np.array([[2]], np.int32), np.ones((1, 1), np.float32))
    with pytest.raises(ValueError, match="1 to 3 experts, not 4"):
        routed(pool, floats(1, 3), 4, True)
    up = pack(pool, "F32", [floats(8, 8), floats(8, 8)], 8, gate_up=True)
    with pytest.raises(ValueError, match="An expert is a gated projection"):
        Experts([up], [pack(pool, "F32", [floats(8, 9)], 9)])
