"""Rows grouped by their weight: every choice in exactly one block, in order, and multiplied by its own weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.triton.grouped import GroupedTuning, GroupPlan, grouped_linear, most_blocks, plan_groups
from octavo_kernels.triton.weights import Weight, dequantize, quantize

SMALL = GroupedTuning(block_m=16, block_n=32, block_k=64)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def groups(plan: GroupPlan) -> list[tuple[int, list[int]]]:
    used = int(plan.used)
    return [(int(plan.weights[block]), plan.choices[block].tolist()) for block in range(used)]


def expected_groups(chosen: list[int], num_weights: int, block_m: int) -> list[tuple[int, list[int]]]:
    blocks = []
    for weight in range(num_weights):
        mine = [choice for choice, other in enumerate(chosen) if other == weight]
        for first in range(0, len(mine), block_m):
            block = mine[first : first + block_m]
            blocks.append((weight, block + [-1] * (block_m - len(block))))
    return blocks


@settings(max_examples=25, derandomize=True)
@given(st.integers(1, 5), st.sampled_from([1, 2, 4, 16]), st.integers(1, 3), st.data())
def test_choices_are_in_their_weights_blocks_in_order(num_weights, block_m, per_row, data):
    rows = data.draw(st.integers(0, 24))
    chosen = data.draw(st.lists(st.integers(-1, num_weights), min_size=rows * per_row, max_size=rows * per_row))
    tensor = torch.tensor(chosen, dtype=torch.int32).reshape(rows, per_row)
    plan = plan_groups(tensor, num_weights, block_m)
    assert groups(plan) == expected_groups(chosen, num_weights, block_m)


@pytest.mark.parametrize("rows", [1023, 1024, 1025])
def test_choices_beyond_one_scan_are_placed(rows):
    chosen = torch.randint(-1, 3, (rows,), generator=torch.Generator().manual_seed(rows))
    assert groups(plan_groups(chosen, 3, 64)) == expected_groups(chosen.tolist(), 3, 64)


def test_no_distribution_needs_more_blocks_than_there_are():
    for num_weights, block_m, total in [(1, 4, 9), (3, 4, 2), (3, 4, 3), (3, 4, 11), (4, 2, 9)]:
        # One choice for each weight wastes most, and one weight takes the rest.
        worst = [min(choice, num_weights - 1) for choice in range(total)]
        assert len(expected_groups(worst, num_weights, block_m)) <= most_blocks(total, num_weights, block_m)


@pytest.mark.parametrize("kind", ["dense", "int8", "int4", "fp8"])
def test_each_choice_is_multiplied_by_its_weight(kind):
    weights = quantize(matrix(3, 40, 96), kind)
    values, x = dequantize(weights), matrix(19, 96, seed=1)
    chosen = torch.randint(-1, 3, (19, 2), generator=torch.Generator().manual_seed(2))
    plan = plan_groups(chosen, 3, 16)
    out = grouped_linear(x, weights, plan, torch.full((38, 40), 7.0), tuning=SMALL)
    each = grouped_linear(x.repeat_interleave(2, 0), weights, plan, torch.full((38, 40), 7.0), tuning=SMALL)
    assert torch.equal(out, each)
    for choice, weight in enumerate(chosen.flatten().tolist()):
        expected = torch.full((40,), 7.0) if weight < 0 else values[weight] @ x[choice // 2]
        torch.testing.assert_close(out[choice], expected, rtol=1e-5, atol=1e-4)


def test_a_rows_bits_do_not_depend_on_the_others():
    weights, x = quantize(matrix(3, 20, 64), "int8"), matrix(40, 64, seed=1).bfloat16()
    chosen = torch.randint(0, 3, (40, 1), generator=torch.Generator().manual_seed(2))
    whole = grouped_linear(x, weights, plan_groups(chosen, 3, 16), tuning=SMALL)
    for rows in (slice(0, 1), slice(39, 40), slice(10, 27)):
        part = grouped_linear(x[rows], weights, plan_groups(chosen[rows], 3, 16), tuning=SMALL)
        assert torch.equal(part, whole[rows])


def test_what_does_not_fit_is_refused_in_a_sentence():
    weights, chosen = Weight("dense", matrix(2, 8, 32)), torch.zeros(3, 2, dtype=torch.int32)
    plan = plan_groups(chosen, 2, 16)
    with pytest.raises(ValueError, match="contiguous int32 or int64"):
        plan_groups(chosen.float(), 2, 16)
    with pytest.raises(ValueError, match="power of two"):
        plan_groups(chosen, 2, 12)
    with pytest.raises(ValueError, match="plan is for 2 stacked weights"):
        grouped_linear(matrix(3, 32), Weight("dense", matrix(3, 8, 32)), plan, tuning=SMALL)
    with pytest.raises(ValueError, match=r"x must be \[3, 32\]"):
        grouped_linear(matrix(4, 32), weights, plan, tuning=SMALL)
    with pytest.raises(ValueError, match=r"out must be \[6, 8\]"):
        grouped_linear(matrix(3, 32), weights, plan, torch.empty(3, 8), tuning=SMALL)
    with pytest.raises(ValueError, match="plan anew"):
        grouped_linear(matrix(3, 32), weights, plan, tuning=SMALL._replace(block_m=32))
