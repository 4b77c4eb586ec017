"""Weights quantised at load: what they cost, and that it depends on nothing but the weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Pool
from tests.kernels.cpu.weight_samples import (
    as_in_file,
    as_packed,
    as_quantised,
    packed,
    packed_bytes,
    read_units,
    sample,
)

_RNG = np.random.default_rng(0)
_SHAPE = (64, 2048)
_RANDOM = {
    "gaussian": _RNG.standard_normal(_SHAPE, dtype=np.float32),
    "heavy tails": _RNG.standard_t(2.5, _SHAPE).astype(np.float32),
    "laplace": _RNG.laplace(size=_SHAPE).astype(np.float32) * np.float32(0.02),
    "uniform": _RNG.uniform(3, 4, _SHAPE).astype(np.float32),
}


def from_the_ends(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return weights in 4 bits whose scale and minimum are those of each group's ends."""
    groups = weights.reshape(len(weights), -1, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    return (np.clip(np.rint((groups - low) / scale), 0, 15) * scale + low).reshape(weights.shape)


def error(weights: NDArray[np.float32], quantised: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(weights - quantised, dtype=np.float64).mean()))


@pytest.mark.parametrize("name", _RANDOM)
def test_int4_errs_a_tenth_less_than_scales_from_the_ends(name: str) -> None:
    """Of groups around zero that are all as large, so that rounding to 8 bits of the chunk's largest adds little."""
    groups = _RANDOM[name].reshape(64, -1, 32)
    groups = groups - groups.mean(-1, keepdims=True)
    weights = (groups / np.abs(groups).max(-1, keepdims=True)).reshape(_SHAPE)
    assert error(weights, as_quantised("INT4", weights)) < 0.9 * error(weights, from_the_ends(weights))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_int4_of_weights_that_had_four_bits_errs_by_the_rounding_to_8_bits_alone(kind: str) -> None:
    plane = sample(kind, 40, 2048)[2]
    weights = as_in_file(kind, plane, 2048)
    assert_rounded_to_eight_bits(weights, as_quantised("INT4", weights))


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_unit_is_of_the_quants_that_a_group_uses(levels: int, sign: int) -> None:
    """Few of the sixteen quants, anywhere among them: what the others would stand for takes no part."""
    rng = np.random.default_rng(levels)
    blocks = np.zeros((40, 64, 18), np.uint8)
    scales = sign * rng.uniform(0.01, 0.02, (40, 64, 1))
    blocks[:, :, :2] = scales.astype(np.float16).view(np.uint8)
    lowest = rng.integers(0, 17 - levels, (40, 64, 1))
    low, high = lowest + rng.integers(0, levels, (2, 40, 64, 16))
    blocks[:, :, 2:] = low | high << 4
    plane = blocks.reshape(40, -1)
    weights = as_in_file("Q4_0", plane, 2048)
    assert_rounded_to_eight_bits(weights, as_packed("Q4_0", packed("Q4_0", plane, 2048), 2048)[:40])


def assert_rounded_to_eight_bits(weights: NDArray[np.float32], stored: NDArray[np.float32]) -> None:
    """Assert at most half a unit off, and 7.5 times the half sixteenth that a step is rounded by."""
    chunks = weights.reshape(len(weights), 2, -1)
    # A unit is larger where a group spans more than a step can say: by 127 / 119.5 at most.
    unit = np.abs(chunks).max(-1, keepdims=True) / 119.5
    assert (np.abs(stored.reshape(chunks.shape) - chunks) < (0.5 + 7.5 / 32 + 0.05) * unit).all()


def test_int8_has_a_chunk_s_largest_magnitude_at_127() -> None:
    weights = _RANDOM["heavy tails"]
    chunks = weights.reshape(64, 2, -1).astype(np.float64)
    unit = (np.abs(chunks).max(-1, keepdims=True) / 127).astype(np.float32).astype(np.float64)
    wanted = np.clip(np.rint(chunks / unit), -127, 127)
    np.testing.assert_allclose(as_quantised("INT8", weights).reshape(chunks.shape), wanted * unit, rtol=1e-6)


@pytest.mark.parametrize("kind", ["INT8", "INT4"])
@given(
    n=st.integers(1, 70),
    groups=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-40, 30),
    zeros=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_every_variant_packs_the_same_bytes(
    pools: dict[str, Pool], kind: str, n: int, groups: int, seed: int, exponent: int, zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = np.ldexp(rng.standard_t(3, (n, groups * 32)), exponent).astype(np.float32)
    weights[rng.random(weights.shape) < zeros] = 0
    assert len({packed_bytes(kind, weights, pool).tobytes() for pool in pools.values()}) == 1


@pytest.mark.parametrize("value", [0.0, 1.0, -0.375, 1e-6, 60000.0])
def test_int4_of_equal_weights_is_their_value_in_half_precision(value: float) -> None:
    weights = np.full((3, 64), value, np.float32)
    stored = as_quantised("INT4", weights)
    np.testing.assert_allclose(stored, weights.astype(np.float16).astype(np.float32), rtol=5e-5)
    assert (stored == stored[0, 0]).all()


@pytest.mark.parametrize("kind", ["INT8", "INT4"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden(kind: str, poison: float) -> None:
    weights = _RANDOM["gaussian"][:33, :96].copy()
    weights[17, 40] = poison
    units, _ = read_units(kind, packed_bytes(kind, weights), 96)
    assert np.unique(np.argwhere(~np.isfinite(units[..., 0]))[:, 0]).tolist() == [17]
