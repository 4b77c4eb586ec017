"""The one place that starts a kernel: on the device, in Triton's interpreter, or to have it compiled ahead of time.

A recorder sees every launch with its arguments instead of running it: ahead-of-time compilation calls the same wrappers
as serving does, so that what it compiles is what serving selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Recorder = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
"""Called with the kernel, its grid, its arguments and its options (constants, num_warps, num_stages)."""

_recorders: list[Recorder] = []


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run `kernel` on `grid` with `args`; an empty grid runs nothing.

    Whether products and sums are fused is stated in each launch, since Triton's own default changes with its version.
    """
    options.setdefault("enable_fp_fusion", True)
    if _recorders:
        _recorders[-1](kernel, grid, args, options)
    elif all(grid):
        kernel[grid](*args, **options)


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Give every launch of this process to `recorder` instead of running it."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.pop()
