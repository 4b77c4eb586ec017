"""Speed of the CPU kernels at the shapes of SmolLM2-135M: the products of one step, and attention.

    python benchmarks/cpu_kernels.py [--kinds INT8,Q4_1] [--rows 1,64] [--each] [--compare] [--json]

One line for each kind of weights and number of rows: a whole step's products, and their shares of the machine's peaks.
The peaks are measured in the same run: torch's int8 product of 2048 x 2048 x 2048, and what benchmarks/peaks.cpp
(built here if there is a compiler) gets from VNNI without scales at 512 rows, from float32 and from reading memory.
OCTAVO_CPU_ISA chooses the variant. Activations are quantised within the time. --each shows the products one by one,
--compare adds torch's product of the same shape (its int8 product has no scales at all: a bound, not an equal).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize as gguf_quantize

from octavo_kernels.cpu._native import CacheLayout, Pool, Weight, linear, paged_attention
from octavo_kernels.cpu.weights import pack

HIDDEN, INTERMEDIATE, VOCABULARY = 576, 1536, 49152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
# Name, output features, input features, times a step.
PRODUCTS = (
    ("qkv", 960, HIDDEN, 30),
    ("output", HIDDEN, HIDDEN, 30),
    ("gate_up", 2 * INTERMEDIATE, HIDDEN, 30),
    ("down", HIDDEN, INTERMEDIATE, 30),
    ("head", VOCABULARY, HIDDEN, 1),
)


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="INT8,Q4_1,Q8_0,INT4,BF16,F32", help="F32, BF16, INT8, INT4 or GGUF types")
    parser.add_argument("--rows", default="1,8,16,64,256,512")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layers", type=int, default=8, help="copies of each weight, taken in turn (default 8)")
    parser.add_argument("--repeat", type=int, default=5, help="passes of which the median counts")
    parser.add_argument("--attention", default="f32,bf16,int8", help="cache types, or nothing")
    parser.add_argument("--each", action="store_true", help="show each product, not only whole steps")
    parser.add_argument("--compare", action="store_true", help="with torch's products; implies --each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.each |= options.compare
    pool = Pool(options.threads)
    report: dict[str, Any] = {"variant": pool.variant, "threads": pool.threads, "cpu": cpu_name()}
    report |= {"load": os.getloadavg()[0], "peaks": machine_peaks(options)}
    if not options.json:
        print(f"{report['cpu']}, {pool.threads} threads, variant {pool.variant}, load {report['load']:.1f}")
        print("peaks: " + ", ".join(f"{name} {value:.1f}" for name, value in report["peaks"].items()))
    results = []
    for kind in filter(None, options.kinds.split(",")):
        for rows in map(int, options.rows.split(",")):
            results += products(pool, kind, rows, options)
    show_shares(results, report["peaks"], options)
    for dtype in filter(None, options.attention.split(",")):
        results += attention(pool, dtype, options)
    if options.json:
        print(json.dumps(report | {"results": results}, indent=2))


def machine_peaks(options: argparse.Namespace) -> dict[str, float]:
    """Return the rates that shares are taken of: operations and bytes a second, in billions."""
    peaks: dict[str, float] = {}
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is not None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "peaks"
            source = Path(__file__).with_name("peaks.cpp")
            build = [compiler, "-O3", "-march=native", "-std=c++20", "-pthread", str(source), "-o", str(program)]
            subprocess.run(build, check=True)
            done = subprocess.run([program, str(options.threads)], check=True, capture_output=True, text=True)
        peaks |= json.loads(done.stdout)
    import torch

    torch.set_num_threads(options.threads)
    left, right = (torch.randint(-127, 127, (2048, 2048), dtype=torch.int8) for _ in range(2))
    peaks["torch_int_mm_gops"] = 2 * 2048**3 / median_time(lambda: torch._int_mm(left, right), options.repeat) / 1e9
    return peaks


def show_shares(results: list[dict[str, Any]], peaks: dict[str, float], options: argparse.Namespace) -> None:
    """Add to each whole step its shares of the peaks and of our own best shape of its kind, and print them."""
    for step in (result for result in results if result["kernel"] == "step"):
        alike = (result for result in results if result["kind"] == step["kind"] and result["kernel"] != "step")
        best = max(result["gops"] for result in alike)
        share = {"of_own_best": step["gops"] / best}
        if "read_gb_per_s" in peaks:
            share["of_reading"] = step["gb_per_s"] / peaks["read_gb_per_s"]
        if step["kind"] == "F32" and "fp32_gflops" in peaks:
            share["of_fp32"] = step["gops"] / peaks["fp32_gflops"]
        if step["kind"] not in ("F32", "BF16"):
            share["of_torch_int_mm"] = step["gops"] / peaks["torch_int_mm_gops"]
            if "vnni_gops" in peaks:
                share["of_vnni"] = step["gops"] / peaks["vnni_gops"]
        step["shares"] = share
        if not options.json:
            line = f"{step['kind']:>10} {step['rows']:>5} rows {step['seconds'] * 1e3:9.3f} ms"
            line += f" {step['gops']:8.1f} GOP/s {step['gb_per_s']:6.1f} GB/s  "
            print(line + " ".join(f"{name} {value:.0%}" for name, value in share.items()))


def products(pool: Pool, kind: str, rows: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time each product, and add up the step that they make."""
    results, step, operations, moved = [], 0.0, 0.0, 0
    for name, n, k, times in PRODUCTS:
        # A chunk asks for the logits of its last row only.
        count = min(rows, 8) if name == "head" and rows > 64 else rows
        weights = make_weights(pool, kind, n, k, options.layers if times > 1 else 1)
        x = np.random.default_rng(0).standard_normal((count, k), dtype=np.float32)
        out = np.empty((count, n), np.float32)

        def run(weights: list[Weight] = weights, x: Any = x, out: Any = out) -> None:
            for weight in weights:
                linear(pool, x, weight, out)

        seconds = median_time(run, options.repeat) / len(weights)
        work = 2.0 * count * n * k
        result = {"kernel": f"{name} [{n}, {k}]", "kind": kind, "rows": count, "seconds": seconds}
        result |= {"gops": work / seconds / 1e9, "gb_per_s": weights[0].nbytes / seconds / 1e9}
        if options.compare:
            result["torch_gops"] = work / torch_time(kind, count, n, k, options) / 1e9
        results.append(result)
        if options.each:
            show(result, options)
        step, operations, moved = step + seconds * times, operations + work * times, moved + weights[0].nbytes * times
    whole = {"kernel": "step", "kind": kind, "rows": rows, "seconds": step}
    whole |= {"gops": operations / step / 1e9, "gb_per_s": moved / step / 1e9}
    return [*results, whole]


def make_weights(pool: Pool, kind: str, n: int, k: int, copies: int) -> list[Weight]:
    """Return equal weights in different memory, as layers have."""
    values = np.random.default_rng(1).standard_normal((n, k), dtype=np.float32)
    if kind in ("F32", "BF16", "INT8", "INT4"):
        return [pack(pool, "F32", [values], k, kind) for _ in range(copies)]
    blocks = gguf_quantize(values, GGMLQuantizationType[kind])
    return [pack(pool, kind, [blocks], k) for _ in range(copies)]


def attention(pool: Pool, dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time one layer's attention: many decode rows, one decode row with a long context, a prefill."""
    results = []
    for name, sequences, context, queries in (
        ("64 decode rows of 320", 64, 320, 1),
        ("1 decode row of 4096", 1, 4096, 1),
        ("prefill of 512", 1, 512, 512),
    ):
        blocks = context // 16
        layout = CacheLayout(dtype, KV_HEADS, HEAD_DIM)
        cache = np.zeros((sequences * blocks, layout.block_bytes), np.uint8)
        offsets = np.arange(sequences + 1, dtype=np.int32) * np.int32(queries)
        positions = np.tile(np.arange(context - queries, context, dtype=np.int32), sequences)
        contexts = np.full(sequences, context, np.int32)
        tables = np.random.default_rng(2).permutation(sequences * blocks).astype(np.int32).reshape(sequences, blocks)
        q = np.random.default_rng(3).standard_normal((sequences * queries, HEADS, HEAD_DIM), dtype=np.float32)
        out = np.empty_like(q)

        def run(arguments: Any = (q, cache, layout, offsets, positions, contexts, tables, 0.125, out)) -> None:
            paged_attention(pool, *arguments)

        seconds = median_time(run, options.repeat)
        work = 4.0 * HEADS * HEAD_DIM * float((positions + 1).sum())
        result = {"kernel": name, "kind": f"{dtype} cache", "rows": len(q), "seconds": seconds}
        result["gops"] = work / seconds / 1e9
        show(result, options)
        results.append(result)
    return results


def torch_time(kind: str, rows: int, n: int, k: int, options: argparse.Namespace) -> float:
    """Return the seconds of torch's own product: float32, bfloat16, or int8 without scales."""
    import torch

    torch.set_num_threads(options.threads)
    if kind in ("F32", "BF16"):
        dtype = torch.float32 if kind == "F32" else torch.bfloat16
        x, weight = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
        return median_time(lambda: torch.mm(x, weight.t()), options.repeat)
    left, right = (torch.randint(-127, 127, shape, dtype=torch.int8) for shape in ((rows, k), (k, n)))
    return median_time(lambda: torch._int_mm(left, right), options.repeat)


def median_time(run: Callable[[], Any], repeat: int) -> float:
    """Return the median seconds of `repeat` calls, after one that warms up."""
    run()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def show(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a line of the table."""
    if options.json:
        return
    line = f"{result['kind']:>10} {result['rows']:>5} rows  {result['kernel']:<22} {result['seconds'] * 1e3:9.3f} ms"
    line += f" {result['gops']:8.1f} GOP/s"
    if "gb_per_s" in result:
        line += f" {result['gb_per_s']:6.1f} GB/s"
    if "torch_gops" in result:
        line += f"   torch {result['torch_gops']:8.1f} GOP/s"
    print(line)


def cpu_name() -> str:
    """Return the processor's name."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    main()
