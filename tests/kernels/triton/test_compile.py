"""Every kernel compiles for every target without a GPU, and what the compilers say of it is read and judged."""

import os
import subprocess
import sys

import pytest

from octavo_kernels.triton.ahead_of_time import Compiled, Variant
from octavo_kernels.triton.compile_all import count_table, faults, in_turn, write_tables
from octavo_kernels.triton.resources import Resources, parse_amdgcn, parse_cuobjdump

SECONDS = 30

CUOBJDUMP = """
Resource usage:
 Common:
  GLOBAL:0
 Function {name}:
  REG:{registers} STACK:{stack} SHARED:1024 LOCAL:{local} CONSTANT[0]:560 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

AMDGCN = """
    .p2align        8
; %bb.0:
    v_mov_b32_e32 v1, 0
    .amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: {group}
    .kernarg_segment_align: 8
    .name:           attend
    .private_segment_fixed_size: {private}
    .sgpr_count:     18
    .sgpr_spill_count: 0
    .vgpr_count:     76
    .vgpr_spill_count: {spilled}
    .wavefront_size: 64
amdhsa.target:   amdgpu9.42-amd-amdhsa-unknown-gfx942
"""


@pytest.mark.parametrize(
    ("stack", "local", "dynamic", "expected"),
    [
        (0, 0, 0, Resources(255, 0, 1024)),
        (0, 0, 65536, Resources(255, 0, 65536)),
        (2728, 0, 262144, Resources(255, 2728, 262144)),
        (0, 48, 0, Resources(255, 48, 1024)),
    ],
)
def test_nvidia_s_resource_usage_is_read(stack, local, dynamic, expected):
    text = CUOBJDUMP.format(name="attend", registers=255, stack=stack, local=local)
    assert parse_cuobjdump(text, dynamic) == expected


@pytest.mark.parametrize(
    ("group", "private", "spilled", "dynamic", "expected"),
    [
        (0, 0, 0, 8192, Resources(76, 0, 8192)),
        (512, 0, 0, 0, Resources(76, 0, 512)),
        (0, 64, 12, 8192, Resources(76, 64, 8192)),
        (0, 16, 12, 8192, Resources(76, 48, 8192)),
    ],
)
def test_the_metadata_of_amd_s_assembly_is_read(group, private, spilled, dynamic, expected):
    assert parse_amdgcn(AMDGCN.format(group=group, private=private, spilled=spilled), dynamic) == expected


def test_a_text_of_no_kernel_is_refused():
    with pytest.raises(ValueError, match="registers"):
        parse_cuobjdump("cuobjdump fatal: nothing here", 0)
    with pytest.raises(ValueError, match="metadata"):
        parse_amdgcn("s_endpgm", 0)


def variant(target, kernel, number=0, module="octavo_kernels.triton.attention"):
    return Variant(target, module, kernel, f"case {number}", f"BLOCK={16 << number}", f"{{{number}}}")


def test_any_beginning_of_the_order_has_each_kernel_once_a_round_and_its_targets_in_turn():
    variants = [
        variant(target, kernel, number)
        for kernel, count in (("attend", 5), ("merge", 1), ("copy", 2))
        for target in ("sm_80", "sm_90", "gfx942")
        for number in range(count)
    ]
    ordered = in_turn(variants)
    assert sorted(ordered) == sorted(variants)
    assert ordered == in_turn(variants[::-1])
    assert {each.kernel for each in ordered[:3]} == {"attend", "merge", "copy"}
    assert len({each.target for each in ordered[:3]}) == 3
    assert len({(each.kernel, each.target) for each in ordered[:9]}) == 9


def test_what_does_not_compile_or_start_and_what_spills_where_it_may_not_is_told():
    results = [
        Compiled(variant("gfx942", "attend"), Resources(100, 0, 65537), "", 1.0),
        Compiled(variant("sm_90", "attend"), Resources(255, 0, 0), "", 1.0),
        Compiled(variant("sm_80", "attend"), Resources(255, 64, 0), "", 1.0),
        Compiled(variant("sm_80", "pick", module="octavo_kernels.triton.sampling"), Resources(255, 64, 0), "", 1.0),
        Compiled(variant("gfx942", "merge"), None, "CompilationError: at 3:1", 1.0),
    ]
    takes, spills, fails = faults(results)
    assert takes.startswith("TAKES 65537 bytes of shared memory gfx942 attention.attend")
    assert spills.startswith("SPILLS 64 bytes sm_80 attention.attend [case 0] BLOCK=16")
    assert fails == "DOES NOT COMPILE gfx942 attention.merge [case 0] BLOCK=16: CompilationError: at 3:1"


def test_the_tables_count_each_kernel_and_target_and_are_the_same_in_any_order(tmp_path):
    results = [
        Compiled(variant("sm_90", "attend", number), Resources(100 + number, 0, 1024), "", float(number))
        for number in range(3)
    ] + [Compiled(variant("sm_80", "attend"), Resources(90, 0, 2048), "", 1.0)]
    assert [line.split("(")[0].split() for line in count_table(results).splitlines()[1:]] == [
        ["attention.attend", "1"],
        ["all", "1"],
    ]
    assert "3 (≤ 102 registers, 0 spilled, 1 KiB)" in count_table(results)
    write_tables(tmp_path / "here", results)
    write_tables(tmp_path / "there", results[::-1])
    for name in ("sm_80.md", "sm_90.md"):
        assert (tmp_path / "here" / name).read_text() == (tmp_path / "there" / name).read_text()
    assert "| case 1 | 101 | 0 | 1024 | BLOCK=32 |" in (tmp_path / "here" / "sm_90.md").read_text()


def test_a_fair_sample_of_what_serving_selects_compiles_for_every_target():
    """Each kernel for one target at least; also where tests run in the interpreter."""
    ran = subprocess.run(
        [sys.executable, "-m", "octavo_kernels.triton.compile_all", "--seconds", str(SECONDS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert "everything compiles" in ran.stdout
    for target in ("sm_80", "sm_90", "gfx942"):
        assert f"] {target} " in ran.stdout
