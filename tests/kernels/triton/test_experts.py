"""Mixtures of experts on the GPU: the reference's choices, and its sums."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import reference
from octavo_kernels.triton.experts import experts, route
from octavo_kernels.triton.grouped import GroupedTuning
from octavo_kernels.triton.weights import Weight, dequantize, quantize

# The interpreter computes what a row without an expert left unwritten, and NaN, with numpy, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

SMALL = GroupedTuning(block_m=16, block_n=32, block_k=64)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("experts_", "top_k"), [(1, 1), (3, 2), (8, 3), (17, 8), (5, 5)])
def test_the_router_chooses_as_the_reference(experts_, top_k, normalize):
    logits = matrix(6, experts_)
    chosen, weights = route(logits, top_k, normalize)
    expected, shares = reference.route(logits, top_k, normalize)
    assert torch.equal(chosen.long(), expected)
    torch.testing.assert_close(weights, shares, rtol=1e-5, atol=1e-6)


def test_of_equal_experts_the_first_is_chosen():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 3.0, 1.0]])
    chosen, _ = route(logits, 3, True)
    assert chosen.tolist() == [[1, 2, 3], [0, 1, 2], [0, 2, 1]]


def test_a_poisoned_row_chooses_experts_that_exist_and_weighs_them_nan():
    logits = matrix(3, 4)
    logits[1] = float("nan")
    logits[2, 1] = float("inf")
    chosen, weights = route(logits, 2, True)
    assert bool(((chosen >= 0) & (chosen < 4)).all())
    assert bool(weights[1].isnan().all())
    assert bool(weights[2].isnan().any())
    assert torch.equal(chosen[0].long(), reference.route(logits[:1], 2, True)[0][0])


@pytest.mark.parametrize("kind", ["dense", "int8", "int4", "fp8"])
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_sums_are_the_references(kind, tokens):
    gate_up, down = quantize(matrix(4, 64, 32), kind), quantize(matrix(4, 32, 32, seed=1), kind)
    x = matrix(tokens, 32, seed=2) / 4
    chosen, weights = route(matrix(tokens, 4, seed=3), 2, True)
    chosen[chosen == 2] = 0
    chosen[1::5, 1] = -1
    expected = reference.experts(x, dequantize(gate_up), dequantize(down), chosen, weights)
    result = experts(x, gate_up, down, chosen, weights, tuning=SMALL, down_tuning=SMALL._replace(block_n=16))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=2e-4)


def test_gelu_gates_where_asked():
    gate_up, down, x = matrix(2, 64, 32), matrix(2, 32, 32, seed=1), matrix(3, 32, seed=2)
    chosen, weights = torch.tensor([[1], [0], [1]]), torch.tensor([[0.5], [1.0], [2.0]])
    gate, up = torch.einsum("tnk,tk->tn", gate_up[chosen[:, 0]], x).chunk(2, dim=1)
    hidden = torch.nn.functional.gelu(gate, approximate="tanh") * up
    expected = torch.einsum("tnk,tk->tn", down[chosen[:, 0]], hidden) * weights
    out = torch.empty(3, 32)
    result = experts(
        x, Weight("dense", gate_up), Weight("dense", down), chosen, weights, out, activation="gelu_tanh", tuning=SMALL
    )
    assert result is out
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


def test_choices_of_other_ranks_add_nothing():
    gate_up, down, x = Weight("dense", matrix(2, 64, 32)), Weight("dense", matrix(2, 32, 32)), matrix(3, 32)
    chosen, weights = torch.tensor([[0, 5], [-3, 2], [2, 1]]), torch.ones(3, 2)
    mine = torch.where((chosen >= 0) & (chosen < 2), chosen, -1)
    expected = reference.experts(x, gate_up.values, down.values, mine, weights)
    result = experts(x, gate_up, down, chosen, weights, tuning=SMALL)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(result[1], torch.zeros(32))


def test_a_rows_bits_do_not_depend_on_the_others():
    gate_up, down = quantize(matrix(3, 64, 32), "int4"), quantize(matrix(3, 32, 32, seed=1), "int4")
    x = matrix(20, 32, seed=2)
    chosen, weights = route(matrix(20, 3, seed=3), 2, True)
    whole = experts(x, gate_up, down, chosen, weights, tuning=SMALL)
    for rows in (slice(0, 1), slice(5, 20)):
        part = experts(x[rows], gate_up, down, chosen[rows], weights[rows], tuning=SMALL)
        assert torch.equal(part, whole[rows])


def test_what_does_not_fit_is_refused_in_a_sentence():
    gate_up, down, x = Weight("dense", matrix(2, 64, 32)), Weight("dense", matrix(2, 32, 32)), matrix(3, 32)
    chosen, weights = torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1)
    with pytest.raises(ValueError, match="cannot be chosen"):
        route(matrix(2, 3), 4, True)
    with pytest.raises(ValueError, match="do not fit"):
        experts(x, down, gate_up, chosen, weights, tuning=SMALL)
    with pytest.raises(ValueError, match=r"must be \[3, k\]"):
        experts(x, gate_up, down, chosen[:2], weights[:2], tuning=SMALL)
    with pytest.raises(ValueError, match="no activation 'relu'"):
        experts(x, gate_up, down, chosen, weights, activation="relu", tuning=SMALL)
    with pytest.raises(ValueError, match="out must be"):
        experts(x, gate_up, down, chosen, weights, torch.empty(3, 16), tuning=SMALL)
