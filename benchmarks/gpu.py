"""Octavo on a GPU, in one command of at most eight minutes: what is right, and how fast it is.

    python benchmarks/gpu.py [--json FILE] [--only machine checks attention products decode throughput shapes]
    python benchmarks/gpu.py --tune            write kernels/octavo_kernels/triton/configurations/<target>.json anew
    python benchmarks/gpu.py --device cpu      run every section's code in Triton's interpreter, on tiny shapes

It needs numpy, torch >= 2.11, triton >= 3.6 (which needs a C compiler) and this repository, nothing built. Models have
random weights, made on the device. Shares are of the copy bandwidth and of the bf16 product's rate of the same run.
A section that fails is told in a sentence, the others go on, and the exit status is 1; a missed goal is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SECTIONS = ("machine", "checks", "attention", "products", "decode", "throughput", "shapes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit status."""
    options = _parse(arguments)
    # Before torch and triton are imported: Triton's library is made for a GPU or for its interpreter.
    sys.path[:0] = [str(REPOSITORY / part) for part in (".", "engine", "kernels")]
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif os.environ.get("TRITON_INTERPRET"):
        print("TRITON_INTERPRET is set, which is for --device cpu: unset it to measure a GPU.", file=sys.stderr)
        return 2
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here: --device cpu runs every section's code, on shapes too small to measure anything.",
              file=sys.stderr)  # fmt: skip
        return 2
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    import torch
    from benchmarks.on_gpu import machine, report, timing

    began = time.perf_counter()
    device = torch.device(options.device)
    tiny = options.device == "cpu"
    if tiny:
        print("Triton's interpreter on the CPU, tiny shapes: every line runs, and no figure means anything.")
    bench = machine.prepare(device, options.seconds, tiny)
    if options.tune:
        from benchmarks.on_gpu import tune

        return tune.run(bench, options.tune_seconds, options.table)
    sections: list[report.Section] = []
    for name in options.only:
        section = report.Section(name)
        sections.append(section)
        print(f"{name} ({time.perf_counter() - began:.0f} s)", flush=True)
        if time.perf_counter() - began > options.limit:
            section.fail(f"not begun: {options.limit:.0f} seconds were over")
            continue
        try:
            _section(name)(bench, section)
        except Exception as error:
            section.fail(report.sentence_of(error))
            if options.trace:
                raise
        section.seconds = time.perf_counter() - section.began
        timing.make_room(device)
    seconds = time.perf_counter() - began
    failed = [f"{section.name}: {sentence}" for section in sections for sentence in section.failed]
    print(report.summary(sections))
    print(f"{seconds:.0f} s; " + (f"{len(failed)} failures:" if failed else "nothing failed"))
    print("\n".join(f"  {sentence}" for sentence in failed))
    if options.json:
        found: dict[str, Any] = {"machine": machine.describe(device), "meaningless": tiny, "seconds": round(seconds, 1)}
        found["sections"] = {section.name: section.as_json() for section in sections}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


def _section(name: str) -> Callable[..., None]:
    """Return a section's function. Imported only now: what one lacks is no reason for another not to run."""
    from benchmarks.on_gpu import machine

    if name == "machine":
        return machine.run
    if name == "checks":
        from benchmarks.on_gpu import checks

        return checks.run
    if name == "attention":
        from benchmarks.on_gpu import attention

        return attention.run
    if name == "products":
        from benchmarks.on_gpu import products

        return products.run
    if name == "throughput":
        from benchmarks.on_gpu import throughput

        return throughput.run
    from benchmarks.on_gpu import decode

    return decode.run if name == "decode" else decode.run_shapes


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="what --device cpu implies; refused on a GPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--seconds", type=float, default=0.3, help="for one measurement, of which the median counts")
    parser.add_argument("--limit", type=float, default=430, help="seconds after which no section is begun")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--trace", action="store_true", help="end at the first section that fails, with its traceback")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tune-seconds", type=float, default=400, help="for the whole of --tune")
    parser.add_argument("--table", type=Path, help="where --tune writes, instead of the target's own table")
    options = parser.parse_args(arguments)
    if options.tiny and options.device != "cpu":
        parser.error("--tiny is for --device cpu: its figures mean nothing")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
