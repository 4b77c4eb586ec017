"""What the size of memory pages costs a decode step: one row times weights in a mapped file, and in memory of our own.

    python benchmarks/page_size.py [--mebibytes 256] [--repeat 9] [--json FILE]

Anonymous memory comes in huge pages where the machine offers them (numpy asks for them). A file's pages are as its
cache was filled: small ones if it was written through a mapping, as packed weights are. Both are read by turns, in one
process; the medians' ratio says what `packed_file` gains by reading into memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from octavo_kernels.cpu import Pool, Weight, linear, plan_packing
from octavo_kernels.cpu.weights import aligned_bytes

COLUMNS = 1024


def main() -> None:
    """Measure, and print gigabytes a second of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=256, help="size of the weights")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = options.mebibytes * 1024
    layout, size = plan_packing("F32", rows, COLUMNS, "INT8")
    own = aligned_bytes(size)
    own[:] = 0
    with tempfile.NamedTemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        np.memmap(file.name, dtype=np.uint8, mode="r+")[:] = own
        mapped = np.memmap(file.name, dtype=np.uint8, mode="r")
        weights = {
            "mapped": Weight(layout, rows, COLUMNS, False, mapped),
            "own": Weight(layout, rows, COLUMNS, False, own),
        }
        seconds = measure(weights, options.repeat)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name:7s} {size / median / 1e9:6.1f} GB/s")
    print(f"own memory is {medians['mapped'] / medians['own']:.2f} x as fast")
    if options.json:
        options.json.write_text(json.dumps({"bytes": size, "seconds": seconds}))


def measure(weights: dict[str, Weight], repeat: int) -> dict[str, list[float]]:
    """Return the seconds of one row's product with each of `weights`, `repeat` times, by turns."""
    pool = Pool(len(os.sched_getaffinity(0)))
    x = np.ones((1, COLUMNS), dtype=np.float32)
    seconds: dict[str, list[float]] = {name: [] for name in weights}
    for turn in range(repeat + 1):
        for name, weight in weights.items():
            out = np.empty((1, weight.features), dtype=np.float32)
            started = time.perf_counter()
            linear(pool, x, weight, out)
            if turn:  # the first touches the pages
                seconds[name].append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
