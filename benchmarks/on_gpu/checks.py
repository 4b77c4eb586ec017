"""Every kernel on the device against its reference on the host, over the models' shapes and shapes at edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.report import Section, sentence_of
from torch import Tensor

BOUNDS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The most that a result may differ, in parts of the largest value of the reference."""


class Case(NamedTuple):
    """One comparison. run: returns how far the kernel is from its reference; bound: the most that is right."""

    kernel: str
    label: str
    bound: float
    run: Callable[[], float]


def run(bench: Bench, section: Section) -> None:
    """Run all cases; each that fails is told, and the others go on."""
    from benchmarks.on_gpu.checks_attention import attention_cases
    from benchmarks.on_gpu.checks_model import model_cases
    from benchmarks.on_gpu.checks_products import product_cases
    from benchmarks.on_gpu.checks_rows import row_cases
    from benchmarks.on_gpu.checks_sampling import sampling_cases

    ran: Counter[str] = Counter()
    right: Counter[str] = Counter()
    worst: dict[str, float] = {}
    for cases in (row_cases, attention_cases, product_cases, sampling_cases, model_cases):
        for case in cases(bench):
            ran[case.kernel] += 1
            try:
                error = case.run()
            except Exception as error:  # noqa: BLE001 - a kernel that does not run is a finding, not the end
                section.fail(f"{case.kernel}, {case.label}: {sentence_of(error)}")
                continue
            worst[case.kernel] = max(worst.get(case.kernel, 0.0), error / case.bound if case.bound else error)
            # NaN is no less than any bound.
            if error <= case.bound:
                right[case.kernel] += 1
            else:
                section.fail(f"{case.kernel}, {case.label}: differs by {error:.2e}, at most {case.bound:.0e} is right")
    for kernel, count in ran.items():
        detail = f"{right[kernel]} of {count} cases"
        section.add(f"{kernel}: worst difference", worst.get(kernel, float("nan")), "of its bound", detail=detail)
    section.at_least("cases that equal their reference", sum(right.values()) / max(1, sum(ran.values())), "share", 1.0)


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


def dtypes(bench: Bench) -> Iterator[torch.dtype]:
    """Yield the types of activations."""
    yield from (torch.bfloat16, torch.float16, torch.float32)
