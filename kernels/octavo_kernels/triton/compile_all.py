"""`python -m octavo_kernels.triton.compile_all`: compile what serving can select, for GPUs that are not here.

Each configuration is compiled to a binary by the target's own backend; registers, spilled bytes and shared memory are
printed and, with `--tables`, written where they are checked in. The exit status is 1 if something does not compile, or
if attention or a matrix product spills.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # main() decides how Triton is imported
    from octavo_kernels.triton.ahead_of_time import Compiled, Variant

TARGET_NAMES: Final = ("sm_80", "sm_90", "gfx942")
NEVER_SPILL: Final = ("attention", "linear", "grouped", "lora")
"""How the names of modules begin whose kernels may not spill."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print, and return the exit status."""
    options = _parse(arguments)
    os.environ.setdefault("TRITON_CACHE_DIR", str(_cache_root() / "triton"))
    if "TRITON_INTERPRET" in os.environ:
        # Triton's own library is made for one or the other when it is imported.
        compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "octavo_kernels.triton.compile_all", *(arguments or sys.argv[1:])]
        return subprocess.run(command, env=compiling, check=False).returncode
    from octavo_kernels.triton import ahead_of_time, shapes, targets

    began = time.monotonic()
    variants = [
        variant
        for name in options.target
        for variant in ahead_of_time.record(targets.TARGETS[name], shapes.cases(targets.TARGETS[name]))
        if options.only in f"{variant.short_module}.{variant.kernel}"
    ]
    if not variants:
        print(
            f"no kernel has {options.only!r} in its name: take a part of module.kernel, as attention", file=sys.stderr
        )
        return 2
    print(f"{len(variants)} variants, recorded in {time.monotonic() - began:.1f} s", flush=True)
    first = len({(variant.module, variant.kernel) for variant in variants})
    results = list(_compile_all(in_turn(variants), options.jobs, first, options.seconds))
    print(f"{len(results)} of {len(variants)} compiled in {time.monotonic() - began:.0f} s")
    print(count_table(results))
    if options.tables is not None:
        write_tables(options.tables, results)
    wrong = faults(results)
    print("\n".join(wrong) if wrong else "everything compiles; no attention and no matrix product spills")
    return 1 if wrong else 0


def in_turn(variants: Sequence[Variant]) -> list[Variant]:
    """Return them so that any beginning is a fair sample: each kernel in each round, its target another each time.

    The order depends on nothing but the variants.
    """
    kernels: dict[tuple[str, str], dict[str, list[Variant]]] = {}
    for variant in sorted(variants, key=lambda each: hashlib.sha256("".join(each).encode()).hexdigest()):
        kernels.setdefault((variant.module, variant.kernel), {}).setdefault(variant.target, []).append(variant)
    queues = []
    for index, (_, by_target) in enumerate(sorted(kernels.items())):
        names = sorted(by_target)
        turned = [by_target[names[(index + each) % len(names)]] for each in range(len(names))]
        longest = max(map(len, turned))
        queues.append([queue[each] for each in range(longest) for queue in turned if each < len(queue)])
    return [queue[each] for each in range(max(map(len, queues), default=0)) for queue in queues if each < len(queue)]


def faults(results: Sequence[Compiled]) -> list[str]:
    """Return a sentence for what does not compile or could not be started, and for each spill where none may be."""
    from octavo_kernels.triton.targets import TARGETS

    found = []
    for variant, resources, failure, _ in results:
        if resources is None:
            found.append(f"DOES NOT COMPILE {variant.sentence()}: {failure}")
        elif resources.shared > TARGETS[variant.target].shared_memory:
            found.append(f"TAKES {resources.shared} bytes of shared memory {variant.sentence()}: more than there are.")
        elif resources.spilled and variant.short_module.startswith(NEVER_SPILL):
            found.append(
                f"SPILLS {resources.spilled} bytes {variant.sentence()}: give it a smaller block or more warps."
            )
    return found


def count_table(results: Sequence[Compiled]) -> str:
    """Return how many variants of each kernel there are for each target, and the most that one takes."""
    names = [name for name in TARGET_NAMES if any(result.variant.target == name for result in results)]
    rows = [("kernel", *names)]
    kernels = sorted({(result.variant.short_module, result.variant.kernel) for result in results})
    for module, kernel in kernels:
        of_kernel = [
            result for result in results if (result.variant.short_module, result.variant.kernel) == (module, kernel)
        ]
        cells = (_cell([result for result in of_kernel if result.variant.target == name]) for name in names)
        rows.append((f"{module}.{kernel}", *cells))
    rows.append(("all", *(_cell([result for result in results if result.variant.target == name]) for name in names)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def write_tables(folder: Path, results: Sequence[Compiled]) -> None:
    """Write a page for each target among `results`. What depends on time or machine is left out."""
    import triton

    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({result.variant.target for result in results}):
        lines = [
            f"# Resources of the GPU kernels on {name}",
            "",
            f"Generated by `python -m octavo_kernels.triton.compile_all --tables` with Triton {triton.__version__}:",
            "every configuration that can be selected, over the shapes and types of `shapes.py`. Spilled: bytes of a",
            "thread that do not fit into registers; shared: bytes of a block.",
            "",
        ]
        of_target = [result for result in results if result.variant.target == name]
        for module, kernel in sorted({(each.variant.short_module, each.variant.kernel) for each in of_target}):
            chosen = [
                each for each in of_target if (each.variant.short_module, each.variant.kernel) == (module, kernel)
            ]
            lines += [
                f"## {module}.{kernel} ({len(chosen)})",
                "",
                "| case | registers | spilled | shared | constants |",
            ]
            lines += ["|---|---|---|---|---|", *sorted(map(_row, chosen)), ""]
        (folder / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n")


def _compile_all(variants: Sequence[Variant], jobs: int, first: int, seconds: float | None) -> Iterator[Compiled]:
    """Compile in `jobs` processes: all, or the first ones and then as many as begin within `seconds`."""
    from octavo_kernels.triton.ahead_of_time import compile_variant

    began, waiting, running = time.monotonic(), iter(variants), set[Future["Compiled"]]()
    total, started, done = len(variants), 0, 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        while True:
            while len(running) < jobs + 1 and (
                seconds is None or started < first or time.monotonic() - began < seconds
            ):
                variant = next(waiting, None)
                if variant is None:
                    break
                running.add(pool.submit(compile_variant, variant))
                started += 1
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                result = future.result()
                done += 1
                print(f"[{done}/{total}] {_progress(result)}", flush=True)
                yield result


def _progress(result: Compiled) -> str:
    took = f"{result.seconds:.1f} s"
    if result.resources is None:
        return f"{result.variant.sentence()}: {took}, DOES NOT COMPILE"
    registers, spilled, shared = result.resources
    return f"{result.variant.sentence()}: {took}, {registers} registers, {spilled} spilled, {shared} shared"


def _cell(results: Sequence[Compiled]) -> str:
    taken = [result.resources for result in results if result.resources is not None]
    if not taken:
        return str(len(results)) if results else "-"
    registers, spilled, shared = (max(each) for each in zip(*taken, strict=True))
    return f"{len(results)} (≤ {registers} registers, {spilled} spilled, {shared / 1024:.0f} KiB)"


def _row(result: Compiled) -> str:
    registers, spilled, shared = result.resources or ("does not compile",) * 3
    return f"| {result.variant.label} | {registers} | {spilled} | {shared} | {result.variant.constants} |"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m octavo_kernels.triton.compile_all", description=__doc__)
    parser.add_argument("--target", nargs="+", choices=TARGET_NAMES, default=list(TARGET_NAMES))
    parser.add_argument("--tables", type=Path, help="a folder to write a page for each target to")
    parser.add_argument("--seconds", type=float, help="begin nothing after this long: a fair sample, each kernel once")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", help="part of module.kernel")
    options = parser.parse_args(arguments)
    if options.tables is not None and (options.seconds is not None or options.only):
        parser.error("--tables needs everything compiled: leave out --seconds and --only")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _cache_root() -> Path:
    """Return the root of Octavo's caches, as the engine finds it."""
    if stated := os.environ.get("OCTAVO_CACHE"):
        return Path(stated)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "octavo"


if __name__ == "__main__":
    sys.exit(main())
