"""Weights in the GPU's layouts: exact where a file is quantised, near where we quantise, whole when cut and joined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize

from octavo_kernels.triton.linear import dequantize_into
from octavo_kernels.triton.weights import Weight, dequantize, empty_weight, from_gguf, join_rows, quantize, stack
from tests.kernels.triton.rounding import rounded

QUANTISED = ("int8", "int4", "fp8")
FILES = ("Q8_0", "Q4_0", "Q4_1")


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plane(kind: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    return gguf_quantize(matrix(n, k, seed=seed).numpy(), GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (5, 96), (40, 288)])
def test_a_files_values_are_kept_to_the_bit(kind, n, k):
    stored = plane(kind, n, k)
    expected = torch.from_numpy(gguf_dequantize(stored, GGMLQuantizationType[kind]))
    weight = from_gguf(kind, stored)
    assert (weight.rows, weight.columns) == (n, k)
    assert torch.equal(dequantize(weight), expected)
    scratch = torch.full((n, k), float("nan"))
    dequantize_into(weight, scratch)
    assert torch.equal(scratch, expected)


def test_every_nibble_and_odd_scale_of_a_file_is_kept():
    generator = np.random.default_rng(0)
    scales = np.array([0.0, -1.5, 6e-8, 8188.0, 0.1, -2e-5], dtype=np.float16)
    for kind, heads, quants in (("Q4_0", 1, 16), ("Q4_1", 2, 16), ("Q8_0", 1, 32)):
        head = generator.choice(scales, (6, 4, heads)).view(np.uint8)
        tail = generator.integers(0, 256, (6, 4, quants), dtype=np.uint8)
        stored = np.concatenate([head, tail], axis=-1).reshape(6, -1)
        expected = torch.from_numpy(gguf_dequantize(stored, GGMLQuantizationType[kind]))
        scratch = torch.empty(6, 128)
        dequantize_into(from_gguf(kind, stored), scratch)
        assert torch.equal(scratch, expected)


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.5 / 127), ("int4", 0.5 / 15), ("fp8", 2**-4)])
def test_quantised_values_are_within_half_a_step(kind, error):
    values = matrix(17, 96)
    values[3] = 0
    values[4] *= 1e-6
    weight = quantize(values, kind)
    spread = values.reshape(17, 3, 32)
    span = spread.amax(-1) - spread.amin(-1) if kind == "int4" else spread.abs().amax(-1)
    # Scales are float16, which ends at 6e-8.
    bound = (span * error * 1.01 + 4e-6).repeat_interleave(32, dim=1)
    assert bool(((dequantize(weight) - values).abs() <= bound).all())
    assert torch.equal(dequantize(weight)[3], torch.zeros(96))


@pytest.mark.parametrize("kind", ["dense", *QUANTISED])
def test_shards_joined_again_are_the_weight(kind):
    values = matrix(12, 96)
    weight = quantize(values, kind)
    whole = dequantize(weight)
    top, bottom = weight.shard_rows(0, 5), weight.shard_rows(5, 12)
    assert torch.equal(dequantize(join_rows([top, bottom])), whole)
    left, right = weight.shard_columns(0, 32), weight.shard_columns(32, 96)
    assert torch.equal(torch.cat([dequantize(left), dequantize(right)], dim=1), whole)
    assert torch.equal(dequantize(stack([weight, weight])), torch.stack([whole, whole]))
    assert stack([weight, weight]).experts == 2
    assert weight.experts is None
    # Both shards hold an fp8 weight's row scales.
    assert left.nbytes + right.nbytes - weight.nbytes == (12 * 4 if kind == "fp8" else 0)


@pytest.mark.parametrize("kind", ["dense", *QUANTISED])
def test_stacked_experts_are_cut_as_each_is(kind):
    values = matrix(3, 8, 64)
    weight = quantize(values, kind)
    single = [quantize(expert, kind) for expert in values]
    assert torch.equal(dequantize(weight), torch.stack([dequantize(expert) for expert in single]))
    rows = torch.stack([dequantize(expert.shard_rows(2, 8)) for expert in single])
    columns = torch.stack([dequantize(expert.shard_columns(32, 64)) for expert in single])
    assert torch.equal(dequantize(weight.shard_rows(2, 8)), rows)
    assert torch.equal(dequantize(weight.shard_columns(32, 64)), columns)


@pytest.mark.parametrize("kind", ["dense", *QUANTISED])
@pytest.mark.parametrize("shape", [(5, 32), (3, 8, 96), (2, 4, 128)])
def test_an_empty_weight_is_laid_out_as_a_quantised_one(kind, shape):
    filled = quantize(matrix(*shape), kind)
    empty = empty_weight(kind, *shape[-2:], torch.float32, "meta", *shape[:-2])
    assert (empty.rows, empty.columns, empty.experts) == (filled.rows, filled.columns, filled.experts)
    assert (empty.rows, empty.columns) == shape[-2:]
    for part, other in ((empty.values, filled.values), (empty.scales, filled.scales)):
        assert (part is None) == (other is None)
        assert part is None or (part.shape, part.dtype) == (other.shape, other.dtype)


def test_stacked_experts_of_a_file_are_each_read():
    planes = np.stack([plane("Q4_1", 4, 64, seed) for seed in range(3)])
    expected = torch.stack([dequantize(from_gguf("Q4_1", one)) for one in planes])
    assert torch.equal(dequantize(from_gguf("Q4_1", planes)), expected)


@pytest.mark.parametrize("kind", ["dense", *QUANTISED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_dequantised_in_pieces_as_in_one(kind, dtype):
    weight = quantize(matrix(37, 288), kind)
    whole = torch.empty(37, 288, dtype=dtype)
    dequantize_into(weight, whole)
    expected = dequantize(weight)
    assert torch.equal(whole, expected.to(dtype) if kind == "dense" else rounded(expected, dtype))
    piece = torch.empty(19, 288, dtype=dtype)
    dequantize_into(weight, piece, 18)
    assert torch.equal(piece, whole[18:])


def _refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_what_does_not_fit_is_refused_in_a_sentence():
    weight = quantize(matrix(4, 64), "int8")
    _refused(lambda: quantize(matrix(4, 64), "int3"), "no weight kind 'int3'")
    _refused(lambda: quantize(matrix(4, 48), "int4"), "48 is no multiple")
    _refused(lambda: quantize(matrix(64), "int8"), "never empty")
    _refused(lambda: quantize(torch.zeros(0, 64), "dense"), "never empty")
    _refused(lambda: quantize(torch.zeros(4, 64, dtype=torch.int32), "int8"), "convert them first")
    _refused(lambda: quantize(torch.full((1, 32), torch.inf), "int8"), "not finite")
    _refused(lambda: weight.shard_columns(0, 16), "cut a group of 32")
    _refused(lambda: weight.shard_rows(2, 5), "no part of a weight's 4")
    _refused(lambda: from_gguf("Q6_K", np.zeros((1, 210), dtype=np.uint8)), "no layout on the GPU")
    _refused(lambda: from_gguf("Q8_0", np.zeros((1, 33), dtype=np.uint8)), "blocks of 34 bytes")
    damaged = np.zeros((1, 18), dtype=np.uint8)
    damaged[0, 1] = 0x78
    _refused(lambda: from_gguf("Q4_0", damaged), "scales beyond 8188")
    _refused(lambda: join_rows([weight, Weight("dense", matrix(4, 64))]), "Only weights of one kind")
    _refused(lambda: stack([weight, quantize(matrix(5, 64), "int8")]), "Only experts of one kind")
    _refused(lambda: dequantize_into(weight, torch.empty(4, 32)), "contiguous")
    _refused(lambda: dequantize_into(weight, torch.empty(4, 64), 1), "not within the weight's 4")
