"""One comparison of a kernel with its reference, and what all of them are made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from benchmarks.on_gpu.machine import Bench
from torch import Tensor

BOUNDS: Final = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The most that a result may differ, in parts of the largest value of the reference."""


class Case(NamedTuple):
    """One comparison. run: returns how far the kernel is from its reference; bound: the most that is right."""

    kernel: str
    label: str
    bound: float
    run: Callable[[], float]


def difference(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference in parts of the reference's largest value; NaN where one is NaN."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    if found.shape != wanted.shape:
        raise ValueError(f"a result of {tuple(found.shape)} where the reference has {tuple(wanted.shape)}")
    if not found.numel():
        return 0.0
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def values(bench: Bench, *size: int, dtype: torch.dtype | None = None, seed: int = 0) -> Tensor:
    """Return random values on the device, of the run's type or another."""
    generator = torch.Generator(bench.device).manual_seed(seed)
    made = torch.empty(size, dtype=torch.float32, device=bench.device).normal_(generator=generator)
    return made.to(dtype or bench.dtype)


def dtypes() -> tuple[torch.dtype, ...]:
    """Return the types of activations."""
    return torch.bfloat16, torch.float16, torch.float32
