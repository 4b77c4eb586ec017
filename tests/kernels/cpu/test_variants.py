"""Choosing a variant, the pool, and what the variants' objects may share."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from octavo_kernels.cpu._native import Pool, linear, variants
from octavo_kernels.cpu.weights import pack

_SOURCES = Path(__file__).parents[3] / "kernels/octavo_kernels/cpu/variant"


def test_the_fastest_variant_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_CPU_ISA", raising=False)
    assert Pool(1).variant == variants()[-1]
    assert variants()[0] == "portable"


@pytest.mark.parametrize("variant", variants())
def test_the_environment_chooses_a_variant(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", variant)
    assert Pool(1).variant == variant


def test_a_variant_that_cannot_run_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", "amx")
    with pytest.raises(
        RuntimeError, match=r"OCTAVO_CPU_ISA is amx, which .* use one of portable, .*unset for the fastest"
    ):
        Pool(1)


@pytest.mark.parametrize(("threads", "spin_us"), [(0, 50), (-1, 50), (2, -1), (2, 51)])
def test_impossible_pools_are_refused(threads: int, spin_us: int) -> None:
    with pytest.raises(ValueError, match="A pool"):
        Pool(threads, spin_us)


@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_threads(threads: int, spin_us: int) -> None:
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((300, 64), dtype=np.float32), rng.standard_normal((20, 64), dtype=np.float32)
    alone, pool = Pool(1), Pool(threads, spin_us)
    wanted, out = np.empty((20, 300), np.float32), np.empty((20, 300), np.float32)
    linear(alone, x, pack(alone, "F32", [weights], 64), wanted)
    packed = pack(pool, "F32", [weights], 64)
    for _ in range(200):
        out.fill(0)
        linear(pool, x, packed, out)
        assert np.array_equal(out, wanted)


def test_calls_on_one_pool_take_turns() -> None:
    rng = np.random.default_rng(0)
    pool = Pool(2)
    weight = pack(pool, "F32", [rng.standard_normal((64, 96), dtype=np.float32)], 96, "INT8")
    inputs = [rng.standard_normal((rows, 96), dtype=np.float32) for rows in (1, 40, 7, 300)]
    wanted = [np.empty((len(x), 64), np.float32) for x in inputs]
    for x, out in zip(inputs, wanted, strict=True):
        linear(pool, x, weight, out)
    wrong: list[int] = []

    def repeat(index: int) -> None:
        out = np.empty_like(wanted[index])
        for _ in range(100):
            linear(pool, inputs[index], weight, out)
            if not np.array_equal(out, wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_python_runs_while_a_kernel_does() -> None:
    pool = Pool(1)
    weight = pack(pool, "F32", [np.ones((2048, 1024), np.float32)], 1024)
    x, out = np.ones((2048, 1024), np.float32), np.empty((2048, 2048), np.float32)
    span: list[float] = []

    def call() -> None:
        span.append(time.perf_counter())
        linear(pool, x, weight, out)
        span.append(time.perf_counter())

    thread = threading.Thread(target=call)
    thread.start()
    turns = []
    while thread.is_alive():
        turns.append(time.perf_counter())
    begin, end = span
    margin = (end - begin) / 5
    assert any(begin + margin < turn < end - margin for turn in turns)


def test_torch_is_not_needed() -> None:
    program = "import sys, octavo_kernels.cpu.weights; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AMX = [*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "bf16"))]
_AMX += ["-mamx-tile", "-mamx-int8", "-mamx-bf16"]


@pytest.mark.parametrize("flags", [[], _AVX2, _AMX], ids=["portable", "avx2", "avx512_amx"])
def test_variants_share_no_code_that_a_linker_could_mix_up(flags: list[str], tmp_path: Path) -> None:
    """An inline function that is not inlined is a weak symbol, of which any object's copy may be kept."""
    objects = []
    for source in sorted(_SOURCES.glob("*.cpp")):
        objects.append(tmp_path / f"{source.stem}.o")
        options = ["-std=c++20", "-O0", "-fno-exceptions", "-fno-rtti", "-Wno-psabi", "-DOCTAVO_VARIANT=mine", *flags]
        subprocess.run(["g++", *options, "-c", source, "-o", objects[-1]], check=True)
    symbols = subprocess.run(
        ["nm", "-C", "--defined-only", *objects], check=True, capture_output=True, text=True
    ).stdout
    named = [line.split(maxsplit=2) for line in symbols.splitlines() if len(line.split()) >= 3]
    assert len(named) > 100
    assert not [name for _, kind, name in named if kind in "WwVvu"]
    assert not [name for _, kind, name in named if kind in "TDBR" and not name.startswith("octavo::mine::")]
