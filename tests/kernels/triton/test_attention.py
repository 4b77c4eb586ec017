"""Paged attention in Triton's interpreter, against its definition in float64 and against itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.reference import paged_attention, plan_attention
from octavo_kernels.triton.attention import AttentionBuffers, AttentionWorkspace, attention, upload
from octavo_kernels.triton.attention_plan import (
    AttentionTuning,
    WorkCapacity,
    WorkList,
    choose_split,
    find_prefixes,
    plan_work,
)
from octavo_kernels.triton.launch import recorded

BLOCK = 16
SPLIT = 64
TUNING = AttentionTuning(16, 32, 4, 2)
CAPACITY = WorkCapacity(128, 128, 512)


class Case(NamedTuple):
    """Rows of (context, queries at its end) over one cache with scattered blocks."""

    q: torch.Tensor
    cache: torch.Tensor
    offsets: np.ndarray
    contexts: np.ndarray
    tables: np.ndarray

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.cache.shape[2]


def build(rows: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, shared: int = 0) -> Case:
    """`shared`: the first blocks are the same for all rows."""
    generator = torch.Generator().manual_seed(0)
    counts = [-(-context // BLOCK) for context, _ in rows]
    order = np.random.default_rng(0).permutation(sum(counts) + 3)
    tables = np.full((len(rows), max(counts) + 1), -1, dtype=np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
        tables[row, :shared] = tables[0, :shared]
    return Case(
        torch.randn(sum(queries for _, queries in rows), heads, head_dim, generator=generator),
        torch.randn(sum(counts) + 3, 2, kv_heads, BLOCK, head_dim, generator=generator),
        np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32),
        np.array([context for context, _ in rows], dtype=np.int32),
        tables,
    )


def plan(case: Case, window: int = 0, **options) -> WorkList:
    settings = {"group_size": case.group, "tuning": TUNING, "split_tokens": SPLIT} | options
    return plan_work(case.offsets, case.contexts, window=window, **settings)


def run(case: Case, work: WorkList, softcap: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tokens, heads, head_dim = case.q.shape
    workspace = AttentionWorkspace(work.partials, heads, head_dim, "cpu")
    capacity = WorkCapacity(tokens, len(work.items) + 3, work.partials)
    uploaded = upload(work, AttentionBuffers(capacity, workspace, "cpu"))
    out = torch.full(case.q.shape, 7.0, dtype=dtype)
    options = {"scale": head_dim**-0.5, "window": work.window, "softcap": softcap, "tuning": TUNING}
    attention(case.q, case.cache, uploaded, torch.from_numpy(case.tables), out, **options)
    return out


def attend(case: Case, window: int = 0, softcap: float = 0.0, **options) -> torch.Tensor:
    return run(case, plan(case, window, **options), softcap)


def definition(case: Case, window: int = 0, softcap: float = 0.0) -> np.ndarray:
    result = np.zeros(case.q.shape)
    for row, context in enumerate(case.contexts):
        blocks = case.tables[row][: -(-context // BLOCK)].clip(min=0)
        keys, values = case.cache[blocks].double().permute(1, 2, 0, 3, 4).flatten(2, 3).numpy()
        begin, end = case.offsets[row : row + 2]
        for token in range(begin, end):
            last = context - end + token + 1
            seen = slice(max(last - window, 0) if window else 0, last)
            for head in range(case.q.shape[1]):
                scores = keys[head // case.group, seen] @ case.q[token, head].double().numpy() * case.q.shape[2] ** -0.5
                if softcap:
                    scores = np.tanh(scores / softcap) * softcap
                weights = np.exp(scores - scores.max())
                result[token, head] = weights / weights.sum() @ values[head // case.group, seen]
    return result


def assert_close(got: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (9, 3), (8, 2), (8, 1)])
def test_decode_attends_to_the_whole_context(heads: int, kv_heads: int) -> None:
    case = build([(context, 1) for context in (1, 15, 16, 17, 63, 64, 65, 150)], heads, kv_heads, 32)
    assert_close(attend(case), definition(case))


@pytest.mark.parametrize("queries", [1, 5, 6, 17, 40])
def test_chunk_is_causal(queries: int) -> None:
    case = build([(100, queries)], 6, 2, 32)
    assert_close(attend(case), definition(case))


@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 80, 128, 256])
def test_head_dims(head_dim: int) -> None:
    case = build([(70, 1), (20, 4)], 4, 2, head_dim)
    assert_close(attend(case), definition(case))


def test_decode_rows_chunks_and_empty_rows_mix() -> None:
    case = build([(130, 1), (16, 16), (40, 0), (90, 20), (1, 1), (64, 1)], 6, 2, 32)
    assert_close(attend(case), definition(case))


def test_the_reference_kernel_means_the_same() -> None:
    case = build([(300, 1), (70, 9)], 6, 2, 32)
    positions = np.array([299, *range(61, 70)], dtype=np.int32)
    reference = plan_attention(case.offsets, positions, case.contexts, case.tables, BLOCK, case.group, 90)
    cache = case.cache.permute(1, 0, 3, 2, 4).contiguous()
    expected = paged_attention(case.q, cache, reference, 32**-0.5, 5.0)
    assert_close(attend(case, 90, 5.0), expected.numpy())


@pytest.mark.parametrize("window", [1, 16, 63, 64, 100])
def test_window_hides_what_lies_behind_it(window: int) -> None:
    case = build([(150, 12), (20, 1), (129, 1)], 6, 2, 32)
    assert_close(attend(case, window), definition(case, window))


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_softcap_bounds_the_scores(softcap: float) -> None:
    case = build([(90, 3)], 4, 2, 32)
    case = case._replace(q=case.q * 20)
    assert_close(attend(case, softcap=softcap), definition(case, softcap=softcap), 1e-4)


def test_what_is_not_the_rows_own_is_not_read() -> None:
    case = build([(150, 1), (70, 1)], 6, 2, 32)
    expected = attend(case, 40)
    freed = case.tables.copy()
    freed[0, : (150 - 40) // BLOCK] = -1
    poisoned = torch.full_like(case.cache, np.nan)
    for row, context in enumerate(case.contexts):
        for position in range(context - 40, context):
            block, offset = case.tables[row, position // BLOCK], position % BLOCK
            poisoned[block, :, :, offset] = case.cache[block, :, :, offset]
    assert torch.equal(attend(case._replace(tables=freed, cache=poisoned), 40), expected)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    case = build([(1, 1), (20, 1)], 2, 1, 32)
    out = attend(case._replace(contexts=np.array([0, 20], dtype=np.int32)))
    assert not out[0].any()
    assert torch.equal(out[1], attend(case)[1])


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e4m3fn),
    ],
)
def test_types(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    case = build([(130, 1), (40, 5)], 6, 2, 32)
    case = case._replace(q=case.q.to(dtype), cache=case.cache.to(cache_dtype))
    # bfloat16 has 8 bits, and weights are rounded to it too.
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5}[dtype]
    assert_close(run(case, plan(case), dtype=dtype), definition(case._replace(cache=case.cache.float())), tolerance)


def test_every_fp8_number_is_read_exactly() -> None:
    case = build([(64, 1)], 2, 1, 32)
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    codes = torch.tensor(finite, dtype=torch.uint8).repeat(30)[: case.cache.numel()]
    codes = torch.cat((codes, torch.zeros(case.cache.numel() - len(codes), dtype=torch.uint8)))
    cache = codes.view(case.cache.shape).view(torch.float8_e4m3fn)
    got, expected = attend(case._replace(cache=cache)), attend(case._replace(cache=cache.float()))
    assert torch.equal(got, expected)
    cache.view(torch.uint8)[case.tables[0, 0], 1, 0, 3] = 0x7F
    assert attend(case._replace(cache=cache)).isnan().all()


def test_queries_and_cache_may_be_parts_of_larger_tensors() -> None:
    case = build([(70, 1), (20, 4)], 4, 2, 32)
    expected = attend(case)
    fused = torch.zeros(5, 8, 32)
    fused[:, 2:6] = case.q
    layers = torch.full((len(case.cache), 3, *case.cache.shape[1:]), np.nan)
    layers[:, 1] = case.cache
    assert torch.equal(attend(case._replace(q=fused[:, 2:6], cache=layers[:, 1])), expected)


def build_exact(rows: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, shared: int = 0) -> Case:
    """A case whose every product of matrices is exact in float32, in whatever order it is summed.

    Where a row lies in a tile then takes no matter to BLAS either, which the interpreter multiplies with; to a GPU's
    matrix units it never does. Everything else rounds as ever.
    """
    case = build(rows, heads, kv_heads, head_dim, shared)
    q, cache = ((part.clamp(-1, 0.99).mul(2).floor().div(2) + 0.25).half() for part in (case.q, case.cache))
    return case._replace(q=q, cache=cache)


CHUNKS = (1, 7, 16, 33)


@pytest.mark.parametrize(("shape", "window"), [((4, 1, 32), 0), ((6, 2, 24), 50), ((3, 1, 32), 0)])
def test_a_row_is_the_same_bits_alone_in_company_and_in_any_chunks(shape: tuple[int, int, int], window: int) -> None:
    context, queries = 170, 34
    case = build_exact([(context, queries)], *shape)
    expected = attend(case, window)
    assert_close(expected, definition(case, window), 1e-3)
    for size in CHUNKS:
        # Each chunk is a row of one step: its company differs too. Of the single queries, some.
        starts = np.arange(0, queries, 6 if size == 1 else size)
        ends = np.minimum(starts + size, queries)
        tokens = np.concatenate([np.arange(*chunk) for chunk in zip(starts, ends, strict=True)])
        chunked = Case(
            case.q[tokens],
            case.cache,
            np.cumsum([0, *(ends - starts)]).astype(np.int32),
            (ends + context - queries).astype(np.int32),
            np.repeat(case.tables, len(starts), axis=0),
        )
        assert torch.equal(attend(chunked, window), expected[tokens])
    # And where tiles go through their splits one after the other.
    assert torch.equal(attend(case, window, capacity=WorkCapacity(queries, 40, 0)), expected)


def alone(case: Case, row: int) -> Case:
    begin, end = case.offsets[row : row + 2]
    return case._replace(
        q=case.q[begin:end],
        offsets=np.array([0, end - begin], dtype=np.int32),
        contexts=case.contexts[row : row + 1],
        tables=case.tables[row : row + 1],
    )


@pytest.mark.parametrize("shape", [(6, 2, 32), (8, 1, 32)])
def test_a_shared_prefix_changes_no_bit(shape: tuple[int, int, int]) -> None:
    rows = [(150, 1), (135, 1), (170, 9), (140, 1), (128, 1), (200, 1), (129, 1)]
    case = build_exact(rows, *shape, shared=8)
    prefixes = find_prefixes(case.tables, case.contexts, case.offsets, multiple=SPLIT)
    assert [(len(prefix.rows), prefix.tokens) for prefix in prefixes] == [(6, 128)]
    shared = attend(case, prefixes=prefixes)
    assert torch.equal(shared, attend(case))
    assert torch.equal(shared, torch.cat([attend(alone(case, row)) for row in range(len(case.contexts))]))
    assert_close(shared, definition(case), 1e-3)


def test_a_prefix_need_not_end_with_a_split_when_the_company_may_matter() -> None:
    case = build([(100, 1), (90, 1), (81, 1), (120, 1)], 6, 2, 32, shared=5)
    prefixes = find_prefixes(case.tables, case.contexts, case.offsets, multiple=BLOCK)
    assert prefixes[0].tokens == 80
    coarse = AttentionTuning(16, 16, 4, 2)
    work = plan(case, tuning=coarse, split_tokens=48, invariant=False, prefixes=prefixes)
    out = torch.empty_like(case.q)
    buffers = AttentionBuffers(CAPACITY, AttentionWorkspace(CAPACITY.partials, 6, 32, "cpu"), "cpu")
    tables = torch.from_numpy(case.tables)
    attention(case.q, case.cache, upload(work, buffers), tables, out, scale=32**-0.5, tuning=coarse)
    assert_close(out, definition(case))


@pytest.mark.parametrize("processors", [1, 8, 132])
def test_a_chosen_split_means_the_same(processors: int) -> None:
    case = build([(400, 1), (64, 1), (70, 10)], 6, 2, 32)
    split = choose_split(case.offsets, case.contexts, group_size=3, kv_heads=2, tuning=TUNING, processors=processors)
    assert_close(attend(case, split_tokens=split, invariant=False), definition(case))


def test_a_graph_of_fixed_grids_replays_any_step_that_fits() -> None:
    buffers = AttentionBuffers(CAPACITY, AttentionWorkspace(CAPACITY.partials, 6, 32, "cpu"), "cpu")
    steps = ([(150, 1), (90, 3)], [(20, 1)], [(64, 5), (65, 1), (130, 1)], [(3, 0)])
    captured = None
    for rows in steps:
        case = build(rows, 6, 2, 32)
        uploaded = upload(plan(case, capacity=CAPACITY), buffers, fixed=True)
        captured = captured or uploaded
        # Only the buffers' contents change from step to step.
        assert (captured.items, captured.merges) == (uploaded.items, uploaded.merges)
        assert captured.lists is uploaded.lists
        out = torch.full((8, 6, 32), 7.0)
        q = torch.zeros(8, 6, 32)
        q[: len(case.q)] = case.q
        attention(q, case.cache, captured, torch.from_numpy(case.tables), out, scale=32**-0.5, tuning=TUNING)
        assert torch.equal(out[: len(case.q)], attend(case))
        assert (out[len(case.q) :] == 7.0).all()
    with pytest.raises(ValueError, match="capture another"):
        upload(plan(case, window=5, capacity=CAPACITY), buffers, fixed=True)


def test_another_step_compiles_no_other_variant() -> None:
    # All that varies is what the kernel takes unspecialised.
    seen: list[tuple[list[object], dict[str, object]]] = []

    def record(kernel: object, grid: tuple[int, ...], args: tuple[object, ...], options: dict[str, object]) -> None:
        seen.append(([arg for arg in args if not isinstance(arg, torch.Tensor)], options))

    with recorded(record):
        for rows in ([(1, 1)], [(15, 15), (160, 16)], [(16, 16)] * 4):
            attend(build(rows, 6, 2, 32), split_tokens=32 * len(rows), invariant=False)
    for (scalars, options), (first, first_options) in zip(seen[2:], seen[:2] * 2, strict=True):
        assert options == first_options
        varying = {number for number, (one, other) in enumerate(zip(scalars, first, strict=True)) if one != other}
        assert varying <= {3, 4}, "the stride of the block tables and the split"


@settings(max_examples=12, derandomize=True)
@given(
    rows=st.lists(
        st.integers(1, 140).flatmap(lambda context: st.tuples(st.just(context), st.integers(0, min(context, 20)))),
        min_size=1,
        max_size=4,
    ),
    window=st.sampled_from([0, 0, 1, 33, 64]),
    shape=st.sampled_from([(1, 1, 16), (3, 1, 32), (8, 2, 16), (10, 2, 24)]),
)
def test_random_steps(rows: list[tuple[int, int]], window: int, shape: tuple[int, int, int]) -> None:
    case = build(rows, *shape)
    assert_close(attend(case, window), definition(case, window))


def test_what_does_not_go_together_is_refused() -> None:
    case = build([(100, 2)], 4, 2, 32)
    work = plan(case)
    buffers = AttentionBuffers(CAPACITY, AttentionWorkspace(CAPACITY.partials, 4, 32, "cpu"), "cpu")
    uploaded = upload(work, buffers)
    tables = torch.from_numpy(case.tables)

    def refused(message: str, q=case.q, cache=case.cache, list_=uploaded, tables=tables, out=case.q, **options) -> None:
        with pytest.raises(ValueError, match=message):
            attention(q, cache, list_, tables, out, **({"scale": 1.0, "tuning": TUNING} | options))

    refused("for groups of 2", cache=case.cache[:, :, :1])
    refused("kv_heads, 16, 32", cache=case.cache[:, :1])
    refused("only the first", cache=case.cache.transpose(0, 1).contiguous().transpose(0, 1))
    refused("float16", q=case.q.double())
    refused("of this shape", out=case.q[:1])
    refused("contiguous from", q=case.q.transpose(0, 1).contiguous().transpose(0, 1))
    refused("int32", tables=tables.long())
    refused("block_m 16", tuning=AttentionTuning(32, 32, 4, 2))
    refused("window 0", window=3)
    small = AttentionBuffers(CAPACITY, AttentionWorkspace(1, 4, 32, "cpu"), "cpu")
    refused("exceed the workspace", list_=upload(work, small))
    with pytest.raises(ValueError, match="exceed the buffers"):
        upload(work, AttentionBuffers(WorkCapacity(2, 1, 9), buffers.workspace, "cpu"))
