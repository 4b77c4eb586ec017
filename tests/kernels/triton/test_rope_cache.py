"""Bias, QK-norm, rotation and cache writes in one launch: the reference's numbers, in the right places."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from octavo_kernels.reference.norm import rms_norm
from octavo_kernels.reference.rope import rope
from octavo_kernels.triton.rope_cache import RopeCacheTuning, rope_and_cache

MAX_POSITION = 40
SLOTS = [16 * 3 + 15, -1, 0, 16 * 2 + 7, 16 * 4]


class Heads(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    half: int


SHAPES = [Heads(1, 1, 2, 1), Heads(4, 2, 16, 8), Heads(9, 3, 64, 32), Heads(5, 1, 80, 16), Heads(3, 3, 24, 11)]


class Inputs(NamedTuple):
    qkv: Tensor
    positions: Tensor
    slots: Tensor
    cos: Tensor
    sin: Tensor


def inputs(shape: Heads) -> Inputs:
    torch.manual_seed(shape.head_dim)
    angles = torch.rand(MAX_POSITION, shape.half) * 6
    qkv = torch.randn(5, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    positions = torch.tensor([0, 39, 7, 7, 1], dtype=torch.int32)
    return Inputs(qkv, positions, torch.tensor(SLOTS), angles.cos(), angles.sin())


def empty(shape: Heads, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return a cache of 5 blocks full of 3, and an output."""
    cache = torch.full((5, 2, shape.kv_heads, 16, shape.head_dim), 3.0).to(dtype)
    return cache, torch.empty(5, shape.heads, shape.head_dim)


def meaning(
    given: Inputs, shape: Heads, bias: Tensor | None, norms: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the rotated q, and the cache that was full of 3."""
    qkv = given.qkv if bias is None else given.qkv + bias
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    q, k, v = qkv.view(5, -1, shape.head_dim).split(sizes, dim=1)
    if norms is not None:
        q, k = (
            rms_norm(x.reshape(-1, shape.head_dim), weight, eps)[0].view(x.shape)
            for x, weight in zip((q, k), norms, strict=True)
        )
    angles = given.cos[given.positions.long()], given.sin[given.positions.long()]
    q, k = rope(q, *angles), rope(k, *angles)
    cache, _ = empty(shape)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            cache[slot // 16, 0, :, slot % 16] = k[token]
            cache[slot // 16, 1, :, slot % 16] = v[token]
    return q, cache


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "heads"), [("plain", 1), ("bias", 4), ("norm", 16), ("both", 4)])
def test_rotated_and_written_as_the_reference_does(shape: Heads, kind: str, heads: int) -> None:
    given = inputs(shape)
    bias = torch.randn(given.qkv.shape[1]) if kind in ("bias", "both") else None
    norms = (torch.randn(shape.head_dim), torch.randn(shape.head_dim)) if kind in ("norm", "both") else None
    cache, out = empty(shape)
    q_weight, k_weight = norms or (None, None)
    rope_and_cache(
        *given, cache, out, bias=bias, q_weight=q_weight, k_weight=k_weight, eps=1e-5, tuning=RopeCacheTuning(heads, 1)
    )
    q, wanted = meaning(given, shape, bias, norms, 1e-5)
    if norms is None:
        # Products and sums, each rounded on its own: the same bits.
        assert torch.equal(out, q)
        assert torch.equal(cache, wanted)
    else:
        torch.testing.assert_close(out, q, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(cache, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_narrow_cache_holds_the_rounded_values(dtype: torch.dtype) -> None:
    shape = SHAPES[2]
    given = inputs(shape)
    cache, out = empty(shape, dtype)
    rope_and_cache(*given, cache, out)
    _, wanted = meaning(given, shape, None, None, 0.0)
    # The interpreter cuts bfloat16 off where a device rounds it.
    torch.testing.assert_close(cache.float(), wanted, rtol=8e-3, atol=1e-4)


def test_an_e4m3_cache_holds_the_nearest_values_and_saturates() -> None:
    """Every value of the format, the ties between neighbours, and what is beyond: as v, which is not rotated."""
    shape = Heads(1, 1, 256, 128)
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (values[1:] + values[:-1]) / 2
    chosen = torch.cat([values, ties, torch.tensor([1e-9, 463.0, 1e30])])
    chosen = torch.cat([chosen, chosen[:2]])[: shape.head_dim]
    given = inputs(shape)
    given.qkv[2, 2 * shape.head_dim :] = chosen
    given.qkv[3, 2 * shape.head_dim :] = -chosen
    given.qkv[4, 2 * shape.head_dim :] = torch.nextafter(chosen, torch.tensor(0.0))
    cache, out = empty(shape, torch.float8_e4m3fn)
    rope_and_cache(*given, cache, out)
    for token in (2, 3, 4):
        slot = SLOTS[token]
        wanted = given.qkv[token, 2 * shape.head_dim :].clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(cache[slot // 16, 1, 0, slot % 16].view(torch.uint8), wanted.view(torch.uint8))


def test_what_is_not_a_number_stays_so_and_stays_in_its_token() -> None:
    shape = SHAPES[1]
    given = inputs(shape)
    healthy, wanted = empty(shape)
    rope_and_cache(*given, healthy, wanted)
    given.qkv[2] = float("nan")
    for dtype in (torch.float32, torch.float8_e4m3fn):
        cache, out = empty(shape, dtype)
        rope_and_cache(*given, cache, out)
        assert cache.float()[0, :, :, 0].isnan().all()
        assert cache.float().isnan().sum() == 2 * shape.kv_heads * shape.head_dim
        others = [0, 1, 3, 4]
        assert torch.equal(out[others], wanted[others])


def test_a_token_alone_is_the_token_among_others() -> None:
    shape = SHAPES[2]
    given = inputs(shape)
    weights = {"q_weight": torch.randn(64), "k_weight": torch.randn(64), "eps": 1e-6}
    cache, together = empty(shape)
    rope_and_cache(*given, cache, together, **weights)
    lonely, alone = empty(shape)
    for i in range(5):
        token = slice(i, i + 1)
        rope_and_cache(
            given.qkv[token], given.positions[token], given.slots[token], given.cos, given.sin, lonely, alone[token],
            **weights,
        )  # fmt: skip
    assert torch.equal(alone, together)
    assert torch.equal(lonely, cache)


def test_what_does_not_fit_is_refused() -> None:
    shape = SHAPES[1]
    given = inputs(shape)
    cache, out = empty(shape)
    with pytest.raises(ValueError, match="num_blocks, 2, kv_heads, 16, 16"):
        rope_and_cache(*given, cache[:, :, :, :8], out)
    with pytest.raises(ValueError, match="with dense rows"):
        rope_and_cache(*given._replace(qkv=given.qkv[:, :-1]), cache, out)
    with pytest.raises(ValueError, match="an int64 slot for each"):
        rope_and_cache(*given._replace(slots=given.slots.int()), cache, out)
    with pytest.raises(ValueError, match="at most 8 angles"):
        rope_and_cache(*given._replace(cos=torch.ones(40, 9), sin=torch.ones(40, 9)), cache, out)
    with pytest.raises(ValueError, match="give q_weight and k_weight together"):
        rope_and_cache(*given, cache, out, q_weight=torch.ones(16))
