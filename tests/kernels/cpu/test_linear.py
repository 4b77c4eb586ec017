"""Matrix products against their definition, row invariance, and equality of the variants."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Pool, Weight, linear, plan_packing
from octavo_kernels.cpu.weights import pack
from tests.kernels.cpu.bits import bits
from tests.kernels.cpu.weight_samples import (
    EIGHT_BITS,
    FLOATS,
    FOUR_BITS,
    QUANTISED,
    as_in_file,
    as_packed,
    chunks,
    packed,
    read_units,
    sample,
    unit,
)

ROWS = (1, 2, 3, 5, 7, 8, 9, 70)


def inputs(rows: int, k: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, k), dtype=np.float32)


def product(pool: Pool, x: NDArray[np.float32], weight: Weight, **more: Any) -> NDArray[np.float32]:
    out = np.full((len(x), weight.features), np.nan, dtype=np.float32)
    linear(pool, x, weight, out, **more)
    return out


def weight_of(pool: Pool, kind: str, n: int, k: int) -> tuple[Weight, NDArray[np.float32]]:
    source, target, plane, meaning = sample(kind, n, k)
    return pack(pool, source, [plane], k, target), meaning


def as_computed(kind: str, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what the kernel makes of its input: bfloat16, or integers of 15 bits with a scale for each chunk."""
    if kind == "F32":
        return x.astype(np.float64)
    if kind == "BF16":
        pattern = x.view(np.uint32).astype(np.uint64)
        rounded = (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16 << 16
        return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    integers, units = split(kind, x)
    return integers * np.repeat(units, [32 * count for count in chunks(x.shape[1])], axis=1).astype(np.float64)


def split(kind: str, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return activations as integers of 15 bits [rows, k], and their scales [rows, chunks].

    Three times the root mean square is 127, with weights of 4 bits four times; its squares are added as twice 16 lanes
    add them.
    """
    often = np.float32(4 if kind in FOUR_BITS else 3)
    integers, scales, at = [], [], 0
    for count in chunks(x.shape[1]):
        values = x[:, at : at + 32 * count]
        at += 32 * count
        lanes = np.zeros((len(x), 2, 16), np.float32)
        for i in range(0, values.shape[1], 32):
            two = values[:, i : i + 32].reshape(-1, 2, 16).astype(np.float64)
            lanes = (two * two + lanes).astype(np.float32)
        lanes = lanes[:, 0] + lanes[:, 1]
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        usual = np.sqrt(lanes[:, 0] / np.float32(values.shape[1])) / (np.float32(127) / often)
        scale = np.maximum(usual, np.abs(values).max(1) / np.float32(127 * 128 + 63))
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.float32(1) / scale
        inverse[np.isinf(inverse)] = 0
        integers.append(np.rint(values * inverse[:, None]).astype(np.int64))
        scales.append(scale)
    return np.concatenate(integers, axis=1), np.stack(scales, axis=1)


def close(result: NDArray[np.float32], wanted: NDArray[np.float64], terms: NDArray[np.float64]) -> bool:
    """Within float32 rounding of sums whose terms' magnitudes add up to `terms`."""
    return bool((np.abs(result - wanted) <= 3e-6 * terms + 1e-30).all())


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED])
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (31, 2), (32, 3), (33, 1), (100, 5)])
def test_a_product_is_that_of_the_weights_as_stored(pool: Pool, kind: str, n: int, blocks: int) -> None:
    k = unit(kind) * blocks
    weight, meaning = weight_of(pool, kind, n, k)
    for rows in ROWS:
        x = inputs(rows, k)
        used = as_computed(kind, x)
        terms = np.abs(used) @ np.abs(meaning.astype(np.float64)).T
        assert close(product(pool, x, weight), used @ meaning.astype(np.float64).T, terms)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("blocks", [1, 3, 5, 40])
def test_quantised_products_are_exact_up_to_one_rounding_a_chunk(pool: Pool, kind: str, blocks: int) -> None:
    """Also with activations so far from each other that many need more than 8 bits."""
    k = unit(kind) * blocks
    source, target, plane, _ = sample(kind, 40, k)
    units, stored = read_units(kind, packed(source, plane, k, target), k)
    weights = stored.reshape(-1, k)[:40]
    weight = pack(pool, source, [plane], k, target)
    for rows in (1, 7, 40):
        x = np.random.default_rng(rows).standard_t(2, (rows, k)).astype(np.float32)
        integers, scales = split(kind, x)
        wanted, at = np.zeros((rows, 40), np.float32), 0
        for chunk, count in enumerate(chunks(k)):
            cut = slice(at, at + 32 * count)
            whole = (integers[:, cut] @ weights[:, cut].T).astype(np.float32)
            factors = units[:40, at // 32, 0][None] * scales[:, chunk, None]
            wanted = (factors.astype(np.float64) * whole + wanted).astype(np.float32)
            at += 32 * count
        assert rows < 40 or (np.abs(integers) > 127).any()
        np.testing.assert_allclose(product(pool, x, weight), wanted, rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", EIGHT_BITS[:-1])
def test_eight_bits_keep_a_file_s_weights_within_half_a_127th_of_their_chunk(kind: str) -> None:
    k = unit(kind) * (2048 // unit(kind))
    _, _, plane, stored = sample(kind, 40, k)
    meaning = as_in_file(kind, plane, k).reshape(40, 2, 1024)
    largest = np.abs(meaning).max(-1, keepdims=True)
    assert (np.abs(stored.reshape(meaning.shape) - meaning) <= 0.501 * largest / 127).all()


@pytest.mark.parametrize("kind", FOUR_BITS[:3])
def test_four_bits_keep_a_file_s_weights_within_little_more(kind: str) -> None:
    """A step is rounded to a sixteenth of a unit, whose error is at most 7.5 / 32 at the ends of the range."""
    k = unit(kind) * (2048 // unit(kind))
    _, _, plane, stored = sample(kind, 40, k)
    meaning = as_in_file(kind, plane, k).reshape(40, 2, 1024)
    # A unit is larger where a group spans more than a step can say: by 127 / 119.5 at most.
    largest = np.abs(meaning).max(-1, keepdims=True) * 127 / 119.5
    errors = np.abs(stored.reshape(meaning.shape) - meaning) / (largest / 127)
    assert errors.max() <= 0.5 + 7.5 / 32 + 0.03
    assert np.sqrt(np.square(errors).mean()) < 0.32


@pytest.mark.parametrize("rows", [1, 9, 40])
def test_sums_of_four_bits_at_their_extremes_do_not_overflow(pool: Pool, rows: int) -> None:
    """The longest chunk, its largest weights, and activations of the largest low and high parts."""
    k = 1024
    plane = np.zeros((32, k // 32, 20), dtype=np.uint8)
    plane[:, :, :4] = np.array([-1.0, 7.5], dtype=np.float16).view(np.uint8)
    plane[:16, :, 4:] = 0xFF  # -7.5, and 7.5 below
    weight = pack(pool, "Q4_1", [plane.reshape(32, -1)], k)
    stored = as_packed("Q4_1", packed("Q4_1", plane.reshape(32, -1), k), k)
    for value in (1.0, -1.0):
        x = np.full((rows, k), value, dtype=np.float32)
        for small in (1, 0.12, 1e-4):
            x[:, ::2] = value * small
            np.testing.assert_allclose(product(pool, x, weight), as_computed("Q4_1", x) @ stored.T, rtol=1e-6)


@pytest.mark.parametrize("kind", FLOATS)
@given(rows=st.integers(1, 20), n=st.integers(1, 70), k=st.integers(1, 90))
@settings(max_examples=25, deadline=None)
def test_floats_take_any_shape(pool: Pool, kind: str, rows: int, n: int, k: int) -> None:
    weight, meaning = weight_of(pool, kind, n, k)
    x = inputs(rows, k)
    used, stored = as_computed(kind, x), meaning.astype(np.float64)
    assert close(product(pool, x, weight), used @ stored.T, np.abs(used) @ np.abs(stored).T)


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED])
def test_a_row_alone_is_the_row_among_others_and_in_chunks(pool: Pool, kind: str) -> None:
    k = 512
    weight, _ = weight_of(pool, kind, 77, k)
    x = inputs(64, k)
    together = bits(product(pool, x, weight))
    alone = np.concatenate([product(pool, x[i : i + 1], weight) for i in range(64)])
    assert np.array_equal(together, bits(alone))
    cuts = [0, 3, 10, 11, 37, 64]
    chunks = [product(pool, x[low:high], weight) for low, high in itertools.pairwise(cuts)]
    assert np.array_equal(together, bits(np.concatenate(chunks)))


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED])
@pytest.mark.parametrize("scale", [1e37, 1e38, 3e38])
def test_a_row_that_overflows_alone_overflows_among_others(pool: Pool, kind: str, scale: float) -> None:
    """To infinities and to what is not a number in the same places, whatever the signs of that (`bits`)."""
    n, k = 138, unit(kind) * 5 if unit(kind) > 1 else 163
    weight, _ = weight_of(pool, kind, n, k)
    with np.errstate(over="ignore"):
        x = inputs(33, k) * np.float32(scale)
    together = product(pool, x, weight)
    alone = np.concatenate([product(pool, x[i : i + 1], weight) for i in range(33)])
    assert scale < 3e38 or not np.isfinite(together).all()
    assert np.array_equal(bits(together), bits(alone))


@pytest.mark.parametrize("kind", [*FLOATS, "Q8_0", "Q4_1"])
def test_a_row_is_itself_among_two_thousand(pool: Pool, kind: str) -> None:
    weight, _ = weight_of(pool, kind, 40, 256)
    x = inputs(2048, 256)
    together = product(pool, x, weight)
    for row in (0, 777, 2047):
        assert np.array_equal(together[row : row + 1], product(pool, x[row : row + 1], weight))


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_products_are_the_same_in_every_variant(pools: dict[str, Pool], kind: str) -> None:
    """Rows and groups around the edges of every variant's tiles and chunks; also where many of them overflow."""
    for rows, n, k in ((9, 96, 768), (5, 70, unit(kind)), (37, 50, unit(kind) * 7), (200, 34, unit(kind) * 25)):
        source, target, plane, _ = sample(kind, n, k)
        half = n // 2
        results: dict[str, bytes] = {}
        for scale, (name, pool) in itertools.product((37, 1e38), pools.items()):
            with np.errstate(over="ignore"):
                x = inputs(rows, k) * np.float32(scale)
            plain = product(pool, x, pack(pool, source, [plane], k, target))
            gated = product(pool, x, pack(pool, source, [plane[:half], plane[half:]], k, target, gate_up=True))
            results[name] = results.get(name, b"") + bits(np.concatenate([plain, gated], axis=1)).tobytes()
        assert len(set(results.values())) == 1, {name: hash(result) for name, result in results.items()}


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED])
@pytest.mark.parametrize("rows", [4, 6, 11, 12, 13, 17, 31, 33, 65, 193])
def test_rows_are_the_same_however_tiles_overlap(pool: Pool, kind: str, rows: int) -> None:
    """Tiles of equal height cover any number of rows, the last two overlapping: nothing may be added twice."""
    k = unit(kind) * 2 if unit(kind) > 1 else 70
    weight, _ = weight_of(pool, kind, 33, k)
    x, residual = inputs(193, k), inputs(193, 33, 2)
    whole = product(pool, x, weight, residual=residual)
    in_place = residual[:rows].copy()
    linear(pool, x[:rows], weight, in_place, residual=in_place)
    assert np.array_equal(in_place, whole[:rows])


@pytest.mark.parametrize("rows", [3, 30])
def test_bytes_at_their_extremes_do_not_saturate(pool: Pool, rows: int) -> None:
    k = 1024
    plane = np.zeros((32, k // 32, 34), dtype=np.uint8)
    plane[:, :, :2] = np.array([1.0], dtype=np.float16).view(np.uint8)
    plane[:16, :, 2:], plane[16:, :, 2:] = 127, 0x80  # 127 and -128
    plane = plane.reshape(32, -1)
    weight, stored = pack(pool, "Q8_0", [plane], k), as_packed("Q8_0", packed("Q8_0", plane, k), k)
    x = np.full((rows, k), 127.0, dtype=np.float32)
    x[1::3] = -127.0
    for every in (k, 16, 2):
        x[:, ::every] *= 8  # the others then are up to 127 of their scale
        np.testing.assert_allclose(product(pool, x, weight), as_computed("Q8_0", x) @ stored.T, rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 20])
def test_nibbles_at_their_extremes_do_not_saturate(pool: Pool, rows: int) -> None:
    k = 64
    plane = np.zeros((32, k // 32, 18), dtype=np.uint8)
    plane[:, :, :2] = np.array([1.0], dtype=np.float16).view(np.uint8)
    plane[:16, :, 2:] = 0xFF  # 7, and -8 below
    x = np.full((rows, k), 127.0, dtype=np.float32)
    x[1::2] = -127.0
    x[:, ::16] *= 8  # the others then are 127 of their scale
    plane = plane.reshape(32, -1)
    wanted = as_computed("Q4_0", x) @ as_packed("Q4_0", packed("Q4_0", plane, k), k).T
    np.testing.assert_allclose(product(pool, x, pack(pool, "Q4_0", [plane], k)), wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", [*FLOATS, "Q8_0", "Q4_1"])
def test_bias_and_residual_are_added(pool: Pool, kind: str) -> None:
    weight, _ = weight_of(pool, kind, 45, 64)
    x, residual, bias = inputs(5, 64), inputs(5, 45, 2), inputs(1, 45, 3)[0]
    plain = product(pool, x, weight)
    assert np.array_equal(product(pool, x, weight, bias=bias, residual=residual), plain + bias + residual)
    in_place = residual.copy()
    linear(pool, x, weight, in_place, residual=in_place)
    assert np.array_equal(in_place, plain + residual)


@pytest.mark.parametrize("kind", [*FLOATS, "Q8_0", "Q4_1", "INT4"])
@pytest.mark.parametrize("features", [1, 16, 17, 40])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_product_is_the_activation_of_gate_times_up(
    pool: Pool, kind: str, features: int, activation: str
) -> None:
    source, target, plane, _ = sample(kind, 2 * features, 64)
    gate, up = plane[:features], plane[features:]
    x, bias, residual = inputs(5, 64), inputs(1, 2 * features, 2)[0], inputs(5, features, 3)
    gates, ups = (product(pool, x, pack(pool, source, [half], 64, target)).astype(np.float64) for half in (gate, up))
    weight = pack(pool, source, [gate, up], 64, target, gate_up=True)
    result = product(pool, x, weight, activation=activation)
    np.testing.assert_allclose(result, activated(activation, gates) * ups, rtol=2e-6, atol=2e-6)
    biased = activated(activation, gates + bias[:features]) * (ups + bias[features:]) + residual
    result = product(pool, x, weight, activation=activation, bias=bias, residual=residual)
    np.testing.assert_allclose(result, biased, rtol=2e-6, atol=2e-6)


def activated(activation: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    if activation == "silu":
        return x / (1 + np.exp(-x))
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_planes_lie_below_each_other(pool: Pool) -> None:
    _, _, plane, _ = sample("Q4_1", 50, 64)
    x = inputs(4, 64)
    whole = product(pool, x, pack(pool, "Q4_1", [plane], 64))
    parts = product(pool, x, pack(pool, "Q4_1", [plane[:13], plane[13:]], 64))
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("kind", [*FLOATS, "Q8_0", "Q4_1"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(pool: Pool, kind: str, poison: float) -> None:
    weight, _ = weight_of(pool, kind, 33, 64)
    x = inputs(6, 64)
    clean = product(pool, x, weight)
    x[2, 40] = poison
    result = product(pool, x, weight)
    assert not np.isfinite(result[2]).any()
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(result[others], clean[others])


def test_no_rows_are_no_work(pool: Pool) -> None:
    weight, _ = weight_of(pool, "F32", 5, 3)
    assert product(pool, inputs(0, 3), weight).shape == (0, 5)


def test_a_packed_weight_can_be_kept_and_mapped_again(pool: Pool) -> None:
    _, _, plane, _ = sample("Q8_0", 40, 64)
    made = pack(pool, "Q8_0", [plane], 64)
    layout, size = plan_packing("Q8_0", 40, 64)
    assert (layout, size) == (made.layout, made.nbytes)
    with pytest.raises(ValueError, match="pack it again"):
        Weight(layout, 40, 64, False, np.zeros(size - 1, np.uint8))


def test_wrong_arguments_are_named(pool: Pool) -> None:
    weight, _ = weight_of(pool, "F32", 5, 3)
    with pytest.raises(ValueError, match=r"x has shape \[2, 4\] where \[2, 3\] is needed"):
        product(pool, inputs(2, 4), weight)
    with pytest.raises(ValueError, match="Q3_K cannot be packed"):
        plan_packing("Q3_K", 32, 256)
    with pytest.raises(ValueError, match="multiple of 256"):
        pack(pool, "Q6_K", [np.zeros((2, 210), np.uint8)], 128)
    with pytest.raises(TypeError):
        linear(pool, inputs(2, 3), weight, np.zeros((2, 5)))  # type: ignore[arg-type]
