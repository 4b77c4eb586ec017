"""Adapters on the GPU: each row's own, beside rows without one."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import reference
from octavo_kernels.triton.grouped import plan_groups
from octavo_kernels.triton.lora import LoraBank, LoraTuning, lora, make_bank

SMALL = LoraTuning(block_m=16, block_n=32, block_k=32, split_k=2)
RANKS = (8, 16, 20)
SCALES = (2.0, 0.5, -1.0)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 4


def bank(inputs: int, features: int, dtype: torch.dtype = torch.float32) -> LoraBank:
    made = make_bank(len(RANKS), max(RANKS), inputs, features, dtype, "cpu")
    for slot, (a, b, scale) in enumerate(adapters(inputs, features)):
        made.load(slot, a, b, scale)
    return made


def adapters(inputs: int, features: int) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    return [
        (matrix(rank, inputs, seed=rank), matrix(features, rank, seed=rank + 1), scale)
        for rank, scale in zip(RANKS, SCALES, strict=True)
    ]


def apply(x: torch.Tensor, made: LoraBank, index: torch.Tensor, out: torch.Tensor, tuning: LoraTuning) -> torch.Tensor:
    lora(x, made, plan_groups(index, made.slots, tuning.block_m), out, tuning=tuning)
    return out


@pytest.mark.parametrize(("tokens", "inputs", "features"), [(0, 32, 16), (1, 32, 1), (15, 48, 33), (17, 96, 40)])
@pytest.mark.parametrize("tuning", [SMALL, SMALL._replace(block_r=32, split_k=1), SMALL._replace(split_k=5)])
def test_each_row_gets_its_adapter(tokens, inputs, features, tuning):
    x, out = matrix(tokens, inputs), matrix(tokens, features, seed=1)
    index = torch.randint(-1, 3, (tokens,), generator=torch.Generator().manual_seed(tokens), dtype=torch.int32)
    expected = out.clone()
    reference.lora(x, adapters(inputs, features), index, expected)
    torch.testing.assert_close(apply(x, bank(inputs, features), index, out, tuning), expected, rtol=1e-5, atol=1e-5)


def test_rows_without_an_adapter_are_not_touched():
    x, out = matrix(5, 32), torch.full((5, 16), float("nan"))
    apply(x, bank(32, 16), torch.full((5,), -1, dtype=torch.int32), out, SMALL)
    assert bool(out.isnan().all())
    out[3] = 0
    apply(x, bank(32, 16), torch.tensor([-1, -1, -1, 1, -1], dtype=torch.int32), out, SMALL)
    assert out.isnan().all(dim=1).tolist() == [True, True, True, False, True]


def test_a_part_of_a_joint_output_is_added_to():
    x, wide = matrix(5, 32), torch.zeros(5, 50)
    index = torch.tensor([0, 1, 2, -1, 1], dtype=torch.int32)
    expected = torch.zeros(5, 16)
    reference.lora(x, adapters(32, 16), index, expected)
    apply(x, bank(32, 16), index, wide[:, 20:36], SMALL)
    torch.testing.assert_close(wide[:, 20:36], expected, rtol=1e-5, atol=1e-5)
    assert not bool(wide[:, :20].any())
    assert not bool(wide[:, 36:].any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_the_reference(dtype):
    x, index = matrix(7, 64).to(dtype), torch.tensor([0, 1, 2, -1, 1, 0, 2])
    out, expected = torch.zeros(7, 16, dtype=dtype), torch.zeros(7, 16)
    reference.lora(x.float(), adapters(64, 16), index, expected)
    torch.testing.assert_close(apply(x, bank(64, 16, dtype), index, out, SMALL).float(), expected, rtol=0.05, atol=0.02)


def test_a_rows_bits_do_not_depend_on_the_others():
    x, made = matrix(40, 64).bfloat16(), bank(64, 16, torch.bfloat16)
    index = torch.randint(-1, 3, (40,), generator=torch.Generator().manual_seed(0))
    whole = apply(x, made, index, torch.zeros(40, 16), SMALL)
    for rows in (slice(0, 1), slice(9, 30), slice(39, 40)):
        part = apply(x[rows], made, index[rows], torch.zeros(len(index[rows]), 16), SMALL)
        assert torch.equal(part, whole[rows])


def test_a_slot_forgets_the_adapter_before():
    made, x, index = bank(32, 16), matrix(2, 32), torch.tensor([2, 2])
    a, b = matrix(4, 32, seed=7), matrix(16, 4, seed=8)
    made.load(2, a, b, 3.0)
    expected = torch.zeros(2, 16)
    reference.lora(x, [(a, b, 3.0)], torch.zeros(2, dtype=torch.int64), expected)
    torch.testing.assert_close(apply(x, made, index, torch.zeros(2, 16), SMALL), expected, rtol=1e-5, atol=1e-5)
    made.clear(2)
    assert not bool(apply(x, made, index, torch.zeros(2, 16), SMALL).any())


def test_what_does_not_fit_is_refused_in_a_sentence():
    made = bank(32, 16)
    plan = plan_groups(torch.zeros(2, dtype=torch.int32), 3, 16)
    with pytest.raises(ValueError, match=r"slots 0\.\.2, not 3"):
        made.load(3, matrix(4, 32), matrix(16, 4), 1.0)
    with pytest.raises(ValueError, match="at most rank 32"):
        made.load(0, matrix(33, 32), matrix(16, 33), 1.0)
    with pytest.raises(ValueError, match="at least 1 of both"):
        make_bank(0, 8, 32, 16, torch.float32, "cpu")
    with pytest.raises(ValueError, match="one of 3 slots"):
        lora(matrix(2, 32), made, plan_groups(torch.zeros(2, dtype=torch.int32), 4, 16), matrix(2, 16), tuning=SMALL)
    with pytest.raises(ValueError, match="x and out must be"):
        lora(matrix(2, 32), made, plan, matrix(2, 17), tuning=SMALL)
    with pytest.raises(ValueError, match="contiguous features"):
        lora(matrix(2, 32), made, plan, matrix(16, 2).t(), tuning=SMALL)
    with pytest.raises(ValueError, match="plan anew"):
        lora(matrix(2, 32), made, plan, matrix(2, 16), tuning=SMALL._replace(block_m=32))
