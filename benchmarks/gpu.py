"""Octavo on a GPU, in one command of at most eight minutes: what is right, and how fast it is.

    python benchmarks/gpu.py [--json FILE] [--only machine checks attention products decode shapes throughput]
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # main() decides how torch and triton are imported
    from benchmarks.on_gpu.machine import Bench
    from benchmarks.on_gpu.report import Section

REPOSITORY = Path(__file__).resolve().parents[1]
SECTIONS = ("machine", "checks", "attention", "products", "decode", "shapes", "throughput")


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
        sentence = (
            "There is no GPU here: --device cpu runs every section's code, on shapes too small to measure anything."
        )
        print(sentence, file=sys.stderr)
        return 2
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    import torch
    from benchmarks.on_gpu import machine, timing

    began = time.perf_counter()
    if options.device == "cpu":
        print("Triton's interpreter on the CPU, tiny shapes: every line runs, and no figure means anything.")
    bench = machine.prepare(torch.device(options.device), options.seconds, began + options.limit)
    timing.make_room(bench.device)
    if options.tune:
        from benchmarks.on_gpu import tune

        return tune.run(bench, options.tune_seconds, options.table)
    sections = _run_sections(bench, options, began)
    return _tell(bench, options, sections, time.perf_counter() - began)


def _run_sections(bench: Bench, options: argparse.Namespace, began: float) -> list[Section]:
    from benchmarks.on_gpu import report, timing

    sections: list[Section] = []
    for place, name in enumerate(options.only):
        section = report.Section(name)
        sections.append(section)
        print(f"{name} ({time.perf_counter() - began:.0f} s)", flush=True)
        if bench.late:
            section.fail(f"not begun: {options.limit:.0f} seconds were over")
            continue
        try:
            _section(name)(bench, section)
            timing.make_room(bench.device)
        except Exception as error:  # noqa: BLE001 - told in the report; the other sections have their turn
            section.fail(report.sentence_of(error))
        section.seconds = time.perf_counter() - section.began
        if section.failed and not timing.usable(bench.device) and (rest := options.only[place + 1 :]):
            # What went wrong on a device stays wrong for its process: the others have one of their own.
            return sections + _run_elsewhere(rest, options, bench.deadline - time.perf_counter())
    return sections


def _run_elsewhere(names: Sequence[str], options: argparse.Namespace, limit: float) -> list[Section]:
    from benchmarks.on_gpu import report

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--device", options.device, "--seconds", str(options.seconds)]
        command += ["--limit", str(limit), "--json", str(path), "--only", *names]
        subprocess.run(command, check=False)
        found = json.loads(path.read_text())["sections"] if path.exists() else {}
    missing = {"failed": ["its process ended"]}
    return [report.Section.from_json(name, found.get(name, missing)) for name in names]


def _tell(bench: Bench, options: argparse.Namespace, sections: Sequence[Section], seconds: float) -> int:
    """Print the goals and what failed, write the JSON, and return the exit status."""
    from benchmarks.on_gpu import machine, report

    failed = [f"{section.name}: {sentence}" for section in sections for sentence in section.failed]
    print(report.summary(sections))
    print(f"{seconds:.0f} s; " + (f"{len(failed)} failures:" if failed else "nothing failed"))
    print("".join(f"  {sentence}\n" for sentence in failed), end="", flush=True)
    if options.json:
        told = {name: section.as_json() for name, section in ((each.name, each) for each in sections)}
        about = {"machine": machine.describe(bench.device), "meaningless": bench.tiny, "seconds": round(seconds, 1)}
        options.json.write_text(json.dumps(about | {"sections": told}, indent=1) + "\n")
    return 1 if failed else 0


def _section(name: str) -> Callable[[Any, Any], None]:
    """Return a section's function. Imported only now: what one lacks is no reason for another not to run."""
    from importlib import import_module

    module = import_module(f"benchmarks.on_gpu.{'decode' if name == 'shapes' else name}")
    found: Callable[[Any, Any], None] = module.run_shapes if name == "shapes" else module.run
    return found


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="what --device cpu implies; refused on a GPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--seconds", type=float, default=0.3, help="for one measurement, of which the median counts")
    parser.add_argument("--limit", type=float, default=430, help="seconds after which nothing is begun")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tune-seconds", type=float, default=400, help="for the whole of --tune")
    parser.add_argument("--table", type=Path, help="where --tune writes, instead of the target's own table")
    options = parser.parse_args(arguments)
    if options.tiny and options.device != "cpu":
        parser.error("--tiny is for --device cpu: its figures mean nothing")
    for name, least in (("seconds", 0.0), ("tune_seconds", 1.0)):
        if not getattr(options, name) > least:
            parser.error(f"--{name.replace('_', '-')} is more than {least:g}, not {getattr(options, name):g}")
    for name in ("json", "table"):
        # Found out now, not after the eight minutes whose figures would be lost.
        path = getattr(options, name)
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            parser.error(f"--{name} {path} cannot be written: name a file in a folder that is there")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
