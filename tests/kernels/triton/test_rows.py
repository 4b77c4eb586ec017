"""Norms, gated activations, embedding and the cap on logits: the reference's numbers at every block's edge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels.reference.activation import silu_mul as reference_silu_mul
from octavo_kernels.reference.norm import rms_norm as reference_rms_norm
from octavo_kernels.triton.rows import (
    RowsTuning,
    embed,
    gather_rows,
    gelu_tanh_mul,
    rms_norm,
    rms_norm_add,
    silu_mul,
    softcap,
)

WIDTHS = (1, 15, 16, 17, 64, 65, 300)
SMALL = RowsTuning(block=16, num_warps=1)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype = torch.float32) -> None:
    # The interpreter cuts bfloat16 off where a device rounds it.
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_norm_is_the_references(width: int, dtype: torch.dtype) -> None:
    x, residual, weight = normal(3, width, dtype=dtype), normal(3, width, seed=1, dtype=dtype), normal(width, seed=2)
    close(rms_norm(x, weight, 1e-5, torch.empty_like(x)), reference_rms_norm(x.float(), weight, 1e-5)[0], dtype)

    wanted, total = reference_rms_norm(x.float(), weight, 1e-5, residual.float())
    found = rms_norm(x, weight, 1e-5, torch.empty_like(x), residual)
    close(residual, total, dtype)
    close(found, wanted, dtype)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_after_a_block_is_added_and_the_next_one_follows(width: int) -> None:
    x, weight, after = normal(3, width), normal(width, seed=2), normal(width, seed=3)
    wanted = normal(3, width, seed=1) + reference_rms_norm(x, weight, 1e-6)[0]
    alone, together, out = normal(3, width, seed=1), normal(3, width, seed=1), torch.empty(3, width)
    rms_norm_add(x, weight, 1e-6, alone)
    rms_norm_add(x, weight, 1e-6, together, after, out)
    close(alone, wanted)
    assert torch.equal(alone, together)
    assert torch.equal(out, rms_norm(alone, after, 1e-6, torch.empty_like(out)))


@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activations_are_the_references(width: int) -> None:
    gate_up = normal(3, 2 * width) * 4
    gate_up[0, 0] = -200.0
    close(silu_mul(gate_up, torch.empty(3, width), SMALL), reference_silu_mul(gate_up))
    gate, up = gate_up.split(width, dim=1)
    wanted = torch.nn.functional.gelu(gate, approximate="tanh") * up
    close(gelu_tanh_mul(gate_up, torch.empty(3, width), SMALL), wanted)


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_of_a_split_vocabulary_sum_up_to_the_embedding(width: int) -> None:
    table, tokens = normal(10, width), torch.tensor([0, 9, 4, 5, 9], dtype=torch.int32)
    whole = embed(table, tokens, torch.empty(5, width), 3.5, tuning=SMALL)
    assert torch.equal(whole, table[tokens.long()] * 3.5)
    parts = [
        embed(table[first : first + 5], tokens, torch.empty(5, width), 3.5, first, tuning=SMALL) for first in (0, 5)
    ]
    assert torch.equal(parts[0] + parts[1], whole)


def test_a_row_gathered_from_nowhere_is_zero() -> None:
    x = normal(4, 33, dtype=torch.bfloat16)
    found = gather_rows(x, torch.tensor([3, -1, 0, 4]), torch.full((4, 33), 7.0, dtype=torch.bfloat16))
    assert torch.equal(found, torch.stack([x[3], torch.zeros_like(x[0]), x[0], torch.zeros_like(x[0])]))


@pytest.mark.parametrize("width", WIDTHS)
def test_capped_logits_are_within_the_cap(width: int) -> None:
    logits = normal(3, width) * 60
    wanted = torch.tanh(logits / 30) * 30
    torch.testing.assert_close(softcap(logits, 30.0, SMALL), wanted, rtol=1e-5, atol=1e-5)
    extreme = softcap(torch.tensor([[3e38, -3e38, float("nan")]]), 30.0)
    assert extreme[0, :2].tolist() == [30, -30]
    assert extreme[0, 2].isnan()


def test_a_row_alone_is_the_row_among_others() -> None:
    x, residual, weight = normal(5, 70), normal(5, 70, seed=1), normal(70, seed=2)
    for function in (
        lambda rows: rms_norm(x[rows], weight, 1e-6, torch.empty_like(x[rows]), residual[rows].clone()),
        lambda rows: silu_mul(x[rows], torch.empty(len(x[rows]), 35), SMALL),
    ):
        together = function(slice(0, 5))
        assert torch.equal(torch.cat([function(slice(i, i + 1)) for i in range(5)]), together)


def test_rows_of_a_wider_matrix_are_read_where_they_stand() -> None:
    wide, weight = normal(3, 40), normal(16, seed=2)
    found = rms_norm(wide[:, 8:24], weight, 1e-6, torch.empty(3, 16))
    assert torch.equal(found, rms_norm(wide[:, 8:24].contiguous(), weight, 1e-6, torch.empty(3, 16)))


def test_no_rows_are_no_work() -> None:
    assert rms_norm(torch.empty(0, 8), normal(8), 1e-6, torch.empty(0, 8)).shape == (0, 8)
    assert silu_mul(torch.empty(0, 8), torch.empty(0, 4)).shape == (0, 4)


def test_what_does_not_fit_is_refused() -> None:
    x, weight = normal(2, 8), normal(8)
    with pytest.raises(ValueError, match="one shape"):
        rms_norm(x, weight, 1e-6, torch.empty(2, 9))
    with pytest.raises(ValueError, match="one for every feature"):
        rms_norm(x, normal(9), 1e-6, torch.empty(2, 8))
    with pytest.raises(ValueError, match="dense rows"):
        rms_norm(normal(8, 2).T, weight, 1e-6, torch.empty(2, 8))
    with pytest.raises(ValueError, match="side by side"):
        silu_mul(x, torch.empty(2, 8))
    with pytest.raises(ValueError, match="give next_weight and out together"):
        rms_norm_add(x, weight, 1e-6, torch.empty(2, 8), weight)
    with pytest.raises(ValueError, match="above 0"):
        softcap(x, 0.0)
    with pytest.raises(ValueError, match="a row for every token"):
        embed(x, torch.tensor([0]), torch.empty(2, 8))
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        embed(x.double(), torch.tensor([0]), torch.empty(1, 8))
