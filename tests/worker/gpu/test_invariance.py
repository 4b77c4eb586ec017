"""With --batch-invariant every step launches the same kernels with the same constants, whatever its rows are.

Then a row's bits depend on that row alone: each kernel sees to that where its constants are fixed. In the interpreter
bits cannot be compared, since the host's own matrix product rounds by where in a tile a row lies.
"""

from __future__ import annotations

from octavo_engine.worker.gpu.precision import GpuPrecision
from octavo_kernels.triton.configurations import for_target
from octavo_kernels.triton.launch import recorded
from octavo_kernels.triton.targets import SM_90
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, prompt_of, tiny_folder
from tests.worker.gpu.building import build_gpu

INT8 = GpuPrecision("bfloat16", "int8", "bfloat16")
SAMPLERS = ("_prepare", "_finish", "_scatter", "scan", "choose", "merge")
"""Kernels without products; what `merge` joins, it joins in order."""


def constants_of_steps(invariant):
    """Of steps of one row, of many, of prompts and both: the kernels launched, and all they were compiled for.

    As for a GPU, whose tables have other constants for few rows than for many.
    """
    model = build_gpu(tiny_folder(), INT8, max_tokens=128, invariant=invariant)
    model.products.configurations = for_target(SM_90)
    driver, steps = Driver(model, invariant=invariant), []

    def launched(kernel, grid, args, options):
        if all(grid):
            name = kernel.fn.__name__
            if not name.startswith(SAMPLERS):
                steps[-1].append((name, tuple(sorted(options.items()))))
            kernel[grid](*args, **options)

    def step(*lives, **deltas):
        steps.append([])
        with recorded(launched):
            driver.step([(live, driver.row(live)) for live in lives], **deltas)

    lives = [driver.live(prompt_of(i, length), slot=i, first_block=8 * i, **GREEDY) for i, length in enumerate((1, 70))]
    lives += [driver.live(prompt_of(9, 3), slot=i, first_block=8 * i, **GREEDY) for i in range(2, 7)]
    step(lives[0], admitted=[driver.admission(lives[0])])
    step(*lives, admitted=[driver.admission(live) for live in lives[1:]])
    step(*lives)
    step(lives[1])
    return steps


def test_no_step_launches_other_kernels_or_other_constants():
    first, *others = constants_of_steps(True)
    assert {name for name, _ in first} >= {"attend"}
    assert sum("linear" in name for name, _ in first) == 5
    assert all(each == first for each in others)


def test_without_it_they_do():
    """Or the test above would prove nothing."""
    first, *others = constants_of_steps(False)
    assert any(each != first for each in others)
