"""What serves a shape: each class has a configuration that can be launched, and what the table lacks comes by rule."""

import json
from itertools import product

import pytest
import torch

from octavo_kernels.triton import heuristics
from octavo_kernels.triton.attention_plan import AttentionTuning
from octavo_kernels.triton.configurations import (
    HEAD_DIMS,
    KINDS,
    TABLES,
    Configurations,
    Entry,
    for_target,
    read_table,
    rows_class,
    write_table,
)
from octavo_kernels.triton.linear import LinearTuning
from octavo_kernels.triton.targets import (
    INTERPRETER,
    SM_80,
    SM_90,
    TARGETS,
    fp8_refusal,
    nearest_target,
    target_of_device,
)

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
ALL = [*TARGETS.values(), INTERPRETER]


def shared_memory(entry):
    """Bytes that the tiles of one stage of the pipeline take, at the least."""
    shape, tuning = entry.shape, entry.tuning
    if entry.kernel == "attention":
        return 2 * tuning.block_n * shape["head_dim"] * shape["cache_bytes"]
    if entry.kernel in ("linear", "grouped"):
        return (tuning.block_m + tuning.block_n) * tuning.block_k * shape["bytes"] // 2
    return 0


@pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)
def test_each_selectable_configuration_can_be_launched(target):
    entries = list(for_target(target).selectable())
    assert {entry.kernel for entry in entries} >= {"attention", "linear", "grouped", "lora", "rows", "rope_cache"}
    for entry in entries:
        sizes = [value for value in entry.tuning if value]
        assert all(value & (value - 1) == 0 or name == "num_stages" for name, value in entry.tuning._asdict().items())
        assert min(sizes) >= 1, entry
        assert entry.tuning.num_warps * target.warp_size <= 1024, entry
        assert shared_memory(entry) <= target.shared_memory, entry


@pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)
def test_what_can_be_selected_is_what_is_selected(target):
    """Ahead-of-time compilation compiles what `selectable` lists: nothing else may be chosen."""
    configurations = for_target(target)
    known = {(entry.kernel, entry.tuning) for entry in configurations.selectable()}
    for kind, rows, size, dtype in product(
        configurations.kinds(), (1, 16, 17, 64, 300), (96, 1536, 4096, 28672), (BF16, FP32)
    ):
        for invariant in (False, True):
            linear = configurations.linear(kind, rows, size, 4096, dtype, invariant=invariant)
            assert ("linear", linear) in known
            assert ("grouped", configurations.grouped(kind, rows, 8, 128, dtype, invariant=invariant)) in known
    for rank, rows in product((1, 8, 16, 64, 256), (1, 256, 4096)):
        assert ("lora", configurations.lora(rank, rows, BF16)) in known
    for width in (64, 576, 5120, 40000):
        assert ("rows", configurations.rows(width)) in known
    for step, head_dim, group in product(("decode", "prefill", "invariant"), (32, 80, 128, 192, 256), (1, 3, 8, 20)):
        assert ("attention", configurations.attention(step, head_dim, group, BF16)) in known


def test_a_configuration_s_tile_holds_the_group_of_query_heads():
    for target, group, head_dim in product(ALL, (1, 3, 16, 17, 32), HEAD_DIMS):
        for step in ("decode", "prefill", "invariant"):
            assert for_target(target).attention(step, head_dim, group, BF16).block_m >= group


def test_what_must_not_depend_on_the_company_has_one_configuration_for_any_rows():
    for target in ALL:
        configurations = for_target(target)
        for kind in configurations.kinds():
            chosen = {
                configurations.linear(kind, rows, 4096, 4096, BF16, invariant=True) for rows in (1, 16, 100, 9000)
            }
            assert len(chosen) == 1
            assert chosen.pop().split_k == 1
        adapters = [configurations.lora(16, rows, BF16) for rows in (1, 9000)]
        assert len({(each.block_r, each.block_k, each.split_k) for each in adapters}) == 1


def test_fp8_is_never_selected_for_sm_80_and_is_refused_with_the_remedy():
    configurations = for_target(SM_80)
    assert "fp8" not in configurations.kinds()
    assert FP8 not in configurations.cache_dtypes()
    assert not any(1 in entry.shape.values() or "fp8" in entry.shape.values() for entry in configurations.selectable())
    refusal = fp8_refusal(SM_80)
    assert refusal is not None
    assert "sm_80" in refusal
    assert "--quantization int8" in refusal
    for refused in (
        lambda: configurations.attention("decode", 128, 4, FP8),
        lambda: configurations.linear("fp8", 1, 4096, 4096, BF16),
        lambda: configurations.grouped("fp8", 1, 8, 128, BF16),
    ):
        with pytest.raises(ValueError, match=r"9\.0 or newer"):
            refused()
    assert fp8_refusal(SM_90) is None


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda of: of.attention("drafting", 64, 1, BF16), "choose from decode, prefill, invariant"),
        (lambda of: of.attention("decode", 512, 1, BF16), "at most 256"),
        (lambda of: of.attention("decode", 64, 64, BF16), "at most 32"),
        (lambda of: of.linear("int3", 1, 64, 64, BF16), "choose from dense, int8, int4, fp8"),
    ],
)
def test_what_no_kernel_serves_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call(for_target(SM_90))


@pytest.mark.parametrize(
    ("rows", "expected"), [(0, 16), (1, 16), (16, 16), (17, 32), (33, 64), (65, 128), (128, 128), (2048, 128)]
)
def test_rows_are_of_the_next_larger_class(rows, expected):
    assert rows_class(rows) == expected


def test_the_most_similar_measured_weight_decides_and_none_that_is_unlike():
    measured = {(4096, 4096): LinearTuning(block_n=32), (8192, 4096): LinearTuning(block_n=256)}
    configurations = Configurations(
        SM_90,
        [
            Entry("linear", {"kind": "int4", "rows": 16, "bytes": 2, "features": n, "inputs": k}, tuning)
            for (n, k), tuning in measured.items()
        ],
    )
    assert configurations.linear("int4", 3, 4096, 4096, BF16) == measured[4096, 4096]
    assert configurations.linear("int4", 3, 4608, 4096, BF16) == measured[4096, 4096]
    assert configurations.linear("int4", 3, 7168, 4096, BF16) == measured[8192, 4096]
    assert configurations.linear("int4", 3, 1024, 4096, BF16) == heuristics.linear(SM_90, 16, 1024, 4096, 2)
    assert configurations.linear("int8", 3, 4096, 4096, BF16) == heuristics.linear(SM_90, 16, 4096, 4096, 2)
    assert configurations.linear("int4", 30, 4096, 4096, BF16) == heuristics.linear(SM_90, 32, 4096, 4096, 2)


def test_a_table_s_entry_comes_before_the_rule():
    shape = {"step": "decode", "head_dim": 128, "group": 16, "cache_bytes": 2}
    own = AttentionTuning(16, 128, 2, 5)
    configurations = Configurations(SM_90, [Entry("attention", shape, own)])
    assert configurations.attention("decode", 96, 4, BF16) == own
    assert configurations.attention("decode", 64, 4, BF16) == heuristics.attention(SM_90, "decode", 64, 16, 2)


def test_inputs_are_split_only_where_programs_are_few():
    assert heuristics.linear(SM_90, 16, 28672, 4096, 2).split_k == 1
    assert heuristics.linear(SM_90, 16, 4096, 4096, 2).split_k > 1
    assert heuristics.linear(SM_90, 16, 1024, 512, 2).split_k == 1
    assert heuristics.linear(INTERPRETER, 16, 4096, 4096, 2).split_k == 1


def test_a_table_is_read_as_it_was_written(tmp_path):
    entries = list(for_target(SM_90).selectable())
    classes = list({json.dumps([entry.kernel, dict(entry.shape)]): entry for entry in entries}.values())
    write_table(tmp_path / "table.json", classes[::-1], "a device")
    write_table(tmp_path / "again.json", read_table(tmp_path / "table.json"), "a device")
    assert (tmp_path / "table.json").read_text() == (tmp_path / "again.json").read_text()
    assert sorted(map(str, read_table(tmp_path / "table.json"))) == sorted(map(str, classes))


def test_a_table_for_other_kernels_is_refused(tmp_path):
    table = tmp_path / "table.json"
    table.write_text('{"measured": "", "entries": [{"kernel": "linear", "shape": {}, "tuning": {"block_q": 16}}]}')
    with pytest.raises(ValueError, match="tune this table again"):
        read_table(table)
    table.write_text('{"measured": "", "entries": [{"kernel": "linger", "shape": {}, "tuning": {}}]}')
    with pytest.raises(ValueError, match="no kernel 'linger'"):
        read_table(table)


def test_each_target_has_a_table_and_no_table_is_of_another():
    assert {path.stem for path in TABLES.iterdir()} == set(TARGETS)


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_90")]
)
def test_a_gpu_is_served_as_the_nearest_older_target(capability, expected):
    target = nearest_target("some GPU", capability, 64)
    assert (target.name, target.processors) == (expected, 64)


def test_devices_without_kernels_are_refused_with_a_remedy(monkeypatch):
    with pytest.raises(ValueError, match=r"8\.0 \(Ampere\) or newer.*--device cpu"):
        nearest_target("Tesla T4", (7, 5), 40)
    with pytest.raises(ValueError, match=r"no kernels for xpu devices.*--device"):
        target_of_device(torch.device("xpu"))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(ValueError, match="not served on it yet"):
        target_of_device(torch.device("cuda"))
    assert target_of_device(torch.device("cpu")) == INTERPRETER


def test_kinds_are_those_of_the_weights():
    from octavo_kernels.triton import weights

    assert KINDS == weights.KINDS
