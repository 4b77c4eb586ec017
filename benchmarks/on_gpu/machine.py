"""What the device is, and what it can do at best: the rates that shares are taken of, measured in the same run."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any, NamedTuple

import torch
import triton
from benchmarks.on_gpu.report import Section
from benchmarks.on_gpu.timing import seconds_of

from octavo_kernels.triton.configurations import Configurations, for_target
from octavo_kernels.triton.targets import target_of_device


class Bench(NamedTuple):
    """What every section is given. copy, gemm: bytes and operations a second. seconds: for one measurement.

    tiny: shapes for the interpreter, whose figures mean nothing. deadline: when no further case is begun.
    """

    device: torch.device
    dtype: torch.dtype
    configurations: Configurations
    copy: float
    gemm: float
    seconds: float
    tiny: bool
    deadline: float = float("inf")

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.device.type == "cuda"

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() > self.deadline

    def pick(self, real: Any, tiny: Any) -> Any:
        """Return a size of the real run, or of the interpreter's."""
        return tiny if self.tiny else real


def describe(device: torch.device) -> dict[str, str]:
    """Return the device and the versions, in words."""
    found = {"torch": torch.__version__, "triton": triton.__version__, "device": "the CPU, in Triton's interpreter"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["memory"] = f"{properties.total_memory / 2**30:.1f} GiB"
        found["multiprocessors"] = str(properties.multi_processor_count)
        found["cuda"] = str(torch.version.cuda)
        found |= _asked_of_driver()
    return found


def _asked_of_driver() -> dict[str, str]:
    """Return what only the driver's own tool tells; nothing where it is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    asked = ("driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "power.limit", "temperature.gpu")
    command = [tool, f"--query-gpu={','.join(asked)}", "--format=csv,noheader", "--id=0"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = told.stdout.strip().splitlines()
    if told.returncode or not lines:
        return {}
    return dict(zip(asked, (part.strip() for part in lines[0].split(",")), strict=False))


def unmeasured(device: torch.device) -> Bench:
    """Return what sections are given, without the device's rates."""
    tiny = device.type != "cuda"
    dtype = torch.float32 if tiny else torch.bfloat16
    return Bench(device, dtype, for_target(target_of_device(device)), 1.0, 1.0, 0.3, tiny)


def prepare(device: torch.device, seconds: float, deadline: float) -> Bench:
    """Measure the device's rates: copying (bytes read and written) and bfloat16 products."""
    bench = unmeasured(device)
    copy = _copy_rate(device, seconds, bench.tiny)
    gemm = _gemm_rate(device, bench.dtype, seconds, bench.tiny)
    return bench._replace(copy=copy, gemm=gemm, seconds=seconds, deadline=deadline)


def _copy_rate(device: torch.device, seconds: float, tiny: bool) -> float:
    size = 1 << 20 if tiny else 2 << 30
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, seconds)


def _gemm_rate(device: torch.device, dtype: torch.dtype, seconds: float, tiny: bool) -> float:
    """Return the best of some sizes: the library's products are not equally good."""
    rates = []
    for size in (64,) if tiny else (4096, 8192):
        # Random values: products of zeros draw less power, and clock higher, than any model's.
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)
        taken = seconds_of(lambda a=left, b=right, c=out: torch.mm(a, b.t(), out=c), device, seconds)
        rates.append(2 * size**3 / taken)
    return max(rates)


def run(bench: Bench, section: Section) -> None:
    """Tell what the machine is."""
    section.remark(", ".join(f"{name} {value}" for name, value in describe(bench.device).items()))
    section.add("copy bandwidth (bytes read and written)", bench.copy / 1e9, "GB/s")
    section.add("bf16 product at its best", bench.gemm / 1e12, "Tflop/s")
