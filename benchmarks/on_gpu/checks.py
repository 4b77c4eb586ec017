"""Every kernel on the device against its reference on the host, over the models' shapes and shapes at edges.

Cases are shared out to processes: most of their time is compiling, and what one breaks on the device for good does not
reach the others, nor the sections after.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from benchmarks.on_gpu.checks_case import Case
from benchmarks.on_gpu.machine import Bench, unmeasured
from benchmarks.on_gpu.report import Section, sentence_of

MOST_PROCESSES: Final = 8
PATIENCE: Final = 240
"""Seconds for a process to end its share of the cases."""
ROOT: Final = Path(__file__).resolve().parents[2]


class Outcome(NamedTuple):
    """What became of a case. error: NaN if it failed, then `failed` says how."""

    kernel: str
    label: str
    bound: float
    error: float
    failed: str = ""


def run(bench: Bench, section: Section) -> None:
    """Run all cases; each that fails is told, and the others go on."""
    count = min(MOST_PROCESSES, os.cpu_count() or 1)
    outcomes = _shared_out(bench, section, count)
    kernels = Counter(outcome.kernel for outcome in outcomes)
    right: Counter[str] = Counter()
    worst: dict[str, float] = {}
    for kernel, label, bound, error, failed in outcomes:
        if failed:
            section.fail(f"{kernel}, {label}: {failed}")
            continue
        worst[kernel] = max(worst.get(kernel, 0.0), error / bound if bound else error)
        # NaN is no less than any bound.
        if error <= bound:
            right[kernel] += 1
        else:
            section.fail(f"{kernel}, {label}: differs by {error:.2e}, at most {bound:.0e} is right")
    for kernel, total in kernels.items():
        detail = f"{right[kernel]} of {total} cases"
        section.add(f"{kernel}: worst difference", worst.get(kernel, float("nan")), "of its bound", detail=detail)
    section.at_least("cases that equal their reference", right.total() / max(1, kernels.total()), "share", 1.0)


def _shared_out(bench: Bench, section: Section, count: int) -> list[Outcome]:
    """Return what became of all cases, each process's share after the other."""
    own = [str(ROOT / part) for part in (".", "engine", "kernels")]
    stated = os.environ.get("PYTHONPATH")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*own, stated] if stated else own)}
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.jsonl" for number in range(count)]
        module = [sys.executable, "-m", "benchmarks.on_gpu.checks", bench.device.type, str(count)]
        processes = [
            subprocess.Popen([*module, str(number), str(file)], env=environment, stderr=subprocess.PIPE, text=True)
            for number, file in enumerate(files)
        ]
        for file, process in zip(files, processes, strict=True):
            try:
                _, told = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                _, told = process.communicate()
            lines = file.read_text().splitlines() if file.exists() else []
            found += [Outcome(*json.loads(line)) for line in lines]
            if process.returncode:
                last = (told or "").strip().splitlines()[-1:] or [f"status {process.returncode}"]
                section.fail(f"a process ended after {len(lines)} cases: {last[0][:300]}")
    return found


def share(arguments: Sequence[str]) -> None:
    """Run one process's share of the cases: device, how many processes, which of them, the file for what they gave."""
    device, count, number, path = arguments
    bench = unmeasured(torch.device(device))
    with Path(path).open("w") as file:
        for place, case in enumerate(_cases(bench)):
            if place % int(count) == int(number):
                file.write(json.dumps(_outcome(case)) + "\n")
                file.flush()


def _cases(bench: Bench) -> Iterator[Case]:
    from benchmarks.on_gpu.checks_attention import attention_cases
    from benchmarks.on_gpu.checks_model import model_cases
    from benchmarks.on_gpu.checks_products import product_cases
    from benchmarks.on_gpu.checks_rows import row_cases
    from benchmarks.on_gpu.checks_sampling import sampling_cases

    for cases in (attention_cases, model_cases, product_cases, row_cases, sampling_cases):
        yield from cases(bench)


def _outcome(case: Case) -> Outcome:
    try:
        return Outcome(case.kernel, case.label, case.bound, case.run())
    except Exception as error:  # noqa: BLE001 - a kernel that does not run is a finding, not the end
        return Outcome(case.kernel, case.label, case.bound, float("nan"), sentence_of(error))


if __name__ == "__main__":
    # Under its own name too, as the cases' modules import it: their `Case` is this one's.
    from benchmarks.on_gpu import checks

    checks.share(sys.argv[1:])
