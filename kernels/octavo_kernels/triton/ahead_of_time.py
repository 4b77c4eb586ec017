"""Compilation without a GPU: launches are recorded, then compiled for a target by its own backend.

A recorded launch is kept as Triton's own description of a specialisation (what `JITFunction.preload` takes), so that
another process can compile it.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from triton import knobs
from triton.runtime.driver import driver

from octavo_kernels.triton import launch
from octavo_kernels.triton.resources import Resources, resources_of
from octavo_kernels.triton.targets import TARGETS, Target

OPTIONS_SHOWN: Final = ("num_warps", "num_stages", "maxnreg")


class Case(NamedTuple):
    """A call of a wrapper that serving makes, with meta tensors, and what it stands for."""

    label: str
    call: Callable[[], object]


class Variant(NamedTuple):
    """One specialisation of one kernel."""

    target: str
    module: str
    kernel: str
    label: str
    """Of the first case that launched it."""
    constants: str
    specialisation: str
    """JSON of Triton's."""

    @property
    def short_module(self) -> str:
        """Return the module's name without its packages."""
        return self.module.rpartition(".")[2]

    def sentence(self) -> str:
        """Return which one it is."""
        return f"{self.target} {self.short_module}.{self.kernel} [{self.label}] {self.constants}"


class Compiled(NamedTuple):
    """What came of a variant: its resources, or why it does not compile."""

    variant: Variant
    resources: Resources | None
    failure: str
    seconds: float


def record(target: Target, cases: Iterator[Case]) -> list[Variant]:
    """Return what these calls would have compiled on `target`, each specialisation once, in the order of the calls.

    Raises what a wrapper raises, with the case's label as a note.
    """
    found: dict[tuple[str, str, str], Variant] = {}
    label = ""

    def keep(**described: Any) -> bool:
        variant = _variant(target, label, described)
        found.setdefault((variant.module, variant.kernel, variant.specialisation), variant)
        return True  # Triton does not compile it then.

    def recorder(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        kernel.run(*args, grid=grid, warmup=True, **options)

    with _compiling_for(target), _cache_hook(keep), launch.recorded(recorder):
        for label, call in cases:
            try:
                call()
            except Exception as error:
                error.add_note(f"in the case {label!r} for {target.name}")
                raise
    return list(found.values())


def compile_variant(variant: Variant) -> Compiled:
    """Compile it to a binary, or find it in Triton's cache. What goes wrong is told in the result."""
    began = time.monotonic()
    kernel = getattr(importlib.import_module(variant.module), variant.kernel)
    resources, failure = None, ""
    with _compiling_for(TARGETS[variant.target]):
        try:
            resources = resources_of(kernel.preload(variant.specialisation))
        except Exception as error:  # noqa: BLE001 - the compilers' own kinds are many; all are told, none is lost
            failure = f"{type(error).__name__}: {error}"
    return Compiled(variant, resources, failure, time.monotonic() - began)


class _NoDevice:
    """What Triton asks of a driver before it compiles. Nothing is ever started through it."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target.gpu

    def get_current_device(self) -> int:
        # A kernel keeps what it compiled by device: each target is one of its own.
        return list(TARGETS).index(self._target.name)

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _compiling_for(target: Target) -> Iterator[None]:
    before = driver._active
    driver.set_active(_NoDevice(target))
    try:
        yield
    finally:
        driver._active = before


@contextmanager
def _cache_hook(hook: Callable[..., bool]) -> Iterator[None]:
    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, hook
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def _variant(target: Target, label: str, described: dict[str, Any]) -> Variant:
    compiled, info = described["compile"], described["fn"]
    names = list(compiled["signature"])
    constants = {
        ".".join([names[path[0]], *map(str, path[1:])]): value
        for path, value in compiled["constants"].items()
        if value is not None
    }
    options = json.loads(compiled["specialization_data"])["options"]
    constants |= {name: options[name] for name in OPTIONS_SHOWN if options.get(name) is not None}
    shown = " ".join(f"{name}={value}" for name, value in constants.items())
    return Variant(
        target.name, info.module, info.jit_function.__name__, label, shown, str(compiled["specialization_data"])
    )
