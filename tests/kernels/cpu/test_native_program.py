"""The kernels without Python under sanitizers: of the portable variant and of the fastest; `make acceptance-4-native`
runs all of them, and under emulators."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from octavo_kernels.cpu._native import variants
from tests.kernels.cpu.native_program import build_program


@pytest.fixture(scope="module")
def for_memory() -> Path:
    return build_program("address,undefined", tuple(dict.fromkeys(("portable", variants()[-1]))))


@pytest.fixture(scope="module")
def for_races() -> Path:
    return build_program("thread", ("portable",))


def run(program: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_CPU_ISA"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_the_kernels_touch_only_their_memory_and_behave_as_defined(for_memory: Path) -> None:
    assert f"chosen: {variants()[-1]}" in run(for_memory)


def test_the_pool_and_the_kernels_parts_do_not_race(for_races: Path) -> None:
    assert "chosen: portable" in run(for_races)
