"""Low-rank adapters per row against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Lora, Pool, lora
from octavo_kernels.reference import lora as reference_lora

Floats = NDArray[np.float32]
Parts = tuple[Floats, Floats, float]


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def bits(values: Floats) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def rounded(values: Floats) -> Floats:
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def parts_of(ranks: Sequence[int], width: int, columns: int) -> list[Parts]:
    return [
        (rounded(floats(rank, width, seed=2 * i)), rounded(floats(columns, rank, seed=2 * i + 1)), 0.5 + i)
        for i, rank in enumerate(ranks)
    ]


def adapters_of(parts: Sequence[Parts], bf16: bool) -> list[Lora]:
    return [Lora(bits(a), bits(b), scale) if bf16 else Lora(a, b, scale) for a, b, scale in parts]


def adapted(pool: Pool, x: Floats, adapters: Sequence[Lora], index: NDArray[np.int32], out: Floats) -> Floats:
    result = out.copy()
    lora(pool, x, adapters, index, result)
    return result


@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 100),
    columns=st.integers(1, 100),
    ranks=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    bf16=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_rows_are_adapted_as_the_reference_does(
    pool: Pool, rows: int, width: int, columns: int, ranks: list[int], bf16: bool, seed: int
) -> None:
    parts = parts_of(ranks, width, columns)
    x, out = floats(rows, width, seed=seed), floats(rows, columns, seed=seed + 1)
    index = np.random.default_rng(seed).integers(-1, len(ranks), rows).astype(np.int32)
    wanted = torch.from_numpy(out.copy())
    tensors = [(torch.from_numpy(a), torch.from_numpy(b), scale) for a, b, scale in parts]
    reference_lora(torch.from_numpy(x), tensors, torch.from_numpy(index), wanted)
    result = adapted(pool, x, adapters_of(parts, bf16), index, out)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=2e-3)
    assert np.array_equal(result[index < 0], out[index < 0])


@pytest.mark.parametrize("bf16", [False, True])
def test_a_row_alone_is_the_row_among_others(pool: Pool, bf16: bool) -> None:
    adapters = adapters_of(parts_of([8, 16, 3], 200, 600), bf16)
    x, out = floats(64, 200), floats(64, 600, seed=1)
    index = np.random.default_rng(0).integers(-1, 3, 64).astype(np.int32)
    together = adapted(pool, x, adapters, index, out)
    alone = [adapted(pool, *(x[i : i + 1],), adapters, index[i : i + 1], out[i : i + 1]) for i in range(64)]
    assert np.array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))


def test_a_slice_of_a_joint_projection_is_adapted(pool: Pool) -> None:
    (parts,) = parts_of([4], 48, 30)
    x, out = floats(5, 48), floats(5, 100, seed=1)
    result, index = out.copy(), np.zeros(5, np.int32)
    lora(pool, x, adapters_of([parts], True), index, result, begin=60)
    part = adapted(pool, x, adapters_of([parts], True), index, np.ascontiguousarray(out[:, 60:90]))
    assert np.array_equal(result[:, 60:90], part)
    assert np.array_equal(result[:, :60], out[:, :60])
    assert np.array_equal(result[:, 90:], out[:, 90:])


def test_wrong_adapters_are_named(pool: Pool) -> None:
    adapters = adapters_of(parts_of([2], 8, 6), False)
    with pytest.raises(ValueError, match="Row 1 has adapter 1 of 1"):
        adapted(pool, floats(2, 8), adapters, np.array([0, 1], np.int32), floats(2, 6))
    with pytest.raises(ValueError, match=r"b has shape \[6, 3\] where \[6, 2\] is needed"):
        Lora(floats(2, 8), floats(6, 3), 1.0)
    with pytest.raises(ValueError, match="end beyond those of out"):
        lora(pool, floats(1, 8), adapters, np.zeros(1, np.int32), floats(1, 6), begin=1)
    with pytest.raises(ValueError, match="float32, or uint16"):
        Lora(np.zeros((2, 8)), floats(6, 2), 1.0)  # type: ignore[arg-type]
