"""Linear layers on the GPU against the reference, at the edges of tiles and steps."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import reference
from octavo_kernels.triton.linear import LinearTuning, dense, linear, linear_many
from octavo_kernels.triton.weights import Weight, dequantize, quantize
from tests.kernels.triton.rounding import rounded

KINDS = ("dense", "int8", "int4", "fp8")
SMALL = LinearTuning(block_m=16, block_n=32, block_k=64)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(kind: str, n: int, k: int) -> Weight:
    return quantize(matrix(n, k, seed=1), kind)


def expected(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The reference on what the kernel multiplies: values rounded to x's type, summed in float32."""
    values = dequantize(weight)
    values = values if weight.kind == "fp8" else rounded(values, x.dtype).float()
    return reference.linear(x.float(), values, None if bias is None else bias.float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("t", "n", "k"), [(0, 8, 32), (1, 1, 32), (15, 33, 64), (16, 32, 96), (17, 70, 160)])
def test_products_are_the_references(kind, t, n, k):
    x, weight, bias = matrix(t, k), make(kind, n, k), matrix(n, seed=2)
    torch.testing.assert_close(linear(x, weight, tuning=SMALL), expected(x, weight), rtol=1e-5, atol=1e-4)
    result = linear(x, weight, bias=bias, tuning=SMALL._replace(split_k=2))
    torch.testing.assert_close(result, expected(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(kind, dtype):
    x, weight, bias = matrix(17, 160).to(dtype), make(kind, 40, 160), matrix(40).to(dtype)
    out = torch.empty(17, 40, dtype=torch.float32)
    assert linear(x, weight, out, bias=bias, tuning=SMALL) is out
    torch.testing.assert_close(out, expected(x, weight, bias), rtol=1e-5, atol=2e-4)
    assert linear(x, weight, tuning=SMALL).dtype == dtype


@pytest.mark.parametrize("k", [1, 31, 33, 100])
def test_dense_and_fp8_weights_take_any_number_of_inputs(k):
    x = matrix(3, k)
    for kind in ("dense", "fp8"):
        weight = make(kind, 5, k)
        torch.testing.assert_close(linear(x, weight, tuning=SMALL), expected(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split_k", [1, 3])
def test_a_rows_bits_do_not_depend_on_the_others(kind, split_k):
    x, weight = matrix(40, 96).bfloat16(), make(kind, 33, 96)
    tuning = SMALL._replace(split_k=split_k)
    whole = linear(x, weight, tuning=tuning)
    for rows in (slice(0, 1), slice(7, 8), slice(13, 30), slice(39, 40)):
        assert torch.equal(linear(x[rows], weight, tuning=tuning), whole[rows])
    others = x.clone()
    others[:20] = float("nan")
    assert torch.equal(linear(others, weight, tuning=tuning)[20:], whole[20:])


def test_more_splits_than_steps_and_steps_that_miss_the_end():
    x, weight = matrix(2, 96), make("int8", 20, 96)
    for tuning in (
        SMALL._replace(split_k=5),
        SMALL._replace(block_k=32),
        SMALL._replace(block_k=256),
        SMALL._replace(block_k=128, split_k=2),
    ):
        torch.testing.assert_close(linear(x, weight, tuning=tuning), expected(x, weight), rtol=1e-5, atol=1e-4)


def test_rows_may_lie_within_wider_ones():
    wide, weight = matrix(9, 100), make("int4", 24, 64)
    x, target = wide[:, 4:68], torch.full((9, 50), 7.0)
    linear(x, weight, target[:, 10:34], tuning=SMALL)
    torch.testing.assert_close(target[:, 10:34], expected(x, weight), rtol=1e-5, atol=1e-4)
    assert bool((target[:, :10] == 7).all())
    assert bool((target[:, 34:] == 7).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [7, 20, 64])
def test_many_rows_are_multiplied_piece_by_piece(kind, rows):
    x, weight, bias = matrix(5, 96), make(kind, 20, 96), matrix(20)
    scratch = torch.empty(rows, 96)
    result = linear_many(x, weight, scratch, bias=bias)
    torch.testing.assert_close(result, expected(x, weight, bias), rtol=1e-5, atol=1e-4)
    out = torch.empty(5, 20, dtype=torch.float64)
    torch.testing.assert_close(linear_many(x, weight, scratch, out).float(), expected(x, weight), rtol=1e-5, atol=1e-4)


def test_the_library_multiplies_dense_weights():
    x, weight, bias = matrix(5, 96).bfloat16(), Weight("dense", matrix(20, 96).bfloat16()), matrix(20)
    out = torch.empty(5, 20, dtype=torch.float32)
    dense(x, weight, out, bias=bias)
    torch.testing.assert_close(out, expected(x, weight, bias.bfloat16()), rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(dense(x, weight).float(), expected(x, weight), rtol=2e-2, atol=5e-2)


def test_what_does_not_fit_is_refused_in_a_sentence():
    weight = make("int8", 4, 64)
    with pytest.raises(ValueError, match=r"x must be \[T, 64\]"):
        linear(matrix(2, 32), weight, tuning=SMALL)
    with pytest.raises(ValueError, match="contiguous features"):
        linear(matrix(64, 2).t(), weight, tuning=SMALL)
    with pytest.raises(ValueError, match=r"out must be \[2, 4\]"):
        linear(matrix(2, 64), weight, torch.empty(2, 5), tuning=SMALL)
    with pytest.raises(ValueError, match="bias must be"):
        linear(matrix(2, 64), weight, bias=torch.zeros(5), tuning=SMALL)
    with pytest.raises(ValueError, match="step of 48 inputs is not possible"):
        linear(matrix(2, 64), weight, tuning=SMALL._replace(block_k=48))
    with pytest.raises(ValueError, match="step of 16 inputs is not possible"):
        linear(matrix(2, 64), make("fp8", 4, 64), tuning=SMALL._replace(block_k=16))
    with pytest.raises(ValueError, match="call grouped_linear"):
        linear(matrix(2, 64), quantize(matrix(3, 4, 64), "int8"), tuning=SMALL)
    with pytest.raises(ValueError, match="call linear or linear_many"):
        dense(matrix(2, 64), weight)
    with pytest.raises(ValueError, match="scratch must be"):
        linear_many(matrix(2, 64), weight, torch.empty(4, 32))
