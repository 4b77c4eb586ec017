"""`octavo doctor`: what this machine offers, as the engine sees it, and whether the engine could serve on it."""

from __future__ import annotations

import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo_engine.commands.findings import ISA_VARIABLE, Findings, lines, size
from octavo_engine.commands.kept import examine_cache
from octavo_engine.model.bundled import BUNDLED
from octavo_engine.worker.cgroup import compute_threads, cpu_quota, memory_limit, spin_microseconds
from octavo_engine.worker.device import NVIDIA

_ISA: Final = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
_NEEDED: Final = (
    "octavo", "fastapi", "uvicorn", "httptools", "httpx", "pyzmq", "msgspec", "numpy", "tokenizers", "safetensors",
    "gguf", "jinja2", "prometheus-client", "psutil", "llguidance",
)  # fmt: skip
_GPU_PACKAGES: Final = ("torch", "triton")
NVIDIA_VERSION: Final = Path("/proc/driver/nvidia/version")


def doctor() -> int:
    """Print the tables and the verdict. Returns the exit code: 1 if the engine could not serve here."""
    findings = examine()
    console = Console()
    for title, rows in findings.tables.items():
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column()
        # What is long is a path, which is there to be copied: it is broken, not cut.
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text(name), Text(value))
        console.print(table)
    for line in findings.verdict():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if findings.lacking else 0


def examine() -> Findings:
    """Look at everything that serving needs."""
    findings = Findings()
    _examine_processor(findings)
    _examine_gpu(findings)
    _examine_memory(findings)
    _examine_kernels(findings)
    _examine_packages(findings)
    try:
        _examine_models(findings)
        examine_cache(findings)
    except OSError as error:
        # There is no place for a cache, or it cannot even be looked at: the message says what to set.
        findings.lacking.append(str(error))
    _examine_sockets(findings)
    return findings


def _examine_processor(findings: Findings) -> None:
    names, flags = set(), set()
    for line in lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            names.add(value.strip())
        elif key.strip() in ("flags", "Features"):
            flags |= set(value.split())
    quota, threads = cpu_quota(), compute_threads()
    spin = spin_microseconds(threads)
    how = f"each spins {spin} µs, then sleeps" if spin else "none spins: the quota is less than whole CPUs"
    findings.tables["Processor"] = [
        ("model", ", ".join(sorted(names)) or platform.machine()),
        ("instruction sets", ", ".join(name for name in _ISA if name in flags) or "baseline only"),
        ("CPUs", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"),
        ("CPU quota (cgroup)", "none" if quota is None else f"{quota:g} CPUs"),
        ("threads of the engine", f"{threads}; {how}"),
    ]


def _examine_gpu(findings: Findings) -> None:
    """Look for a driver and for what computes on it. torch itself is not asked, which would take seconds."""
    driver = next((line.strip() for line in lines(NVIDIA_VERSION)), "")
    packages = {name: _installed(name) for name in _GPU_PACKAGES}
    lacking = [name for name, found in packages.items() if not found]
    if not NVIDIA.exists():
        device = "auto is cpu: no NVIDIA driver here"
    elif lacking:
        device = f"auto is cpu: pip install octavo[gpu] for {' and '.join(lacking)}"
    else:
        device = "auto is cuda, if torch finds a GPU of compute capability 8.0 or newer"
    findings.tables["GPU"] = [
        ("NVIDIA driver", driver or "none"),
        *((name, found or "not installed") for name, found in packages.items()),
        ("--device", device),
    ]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _examine_memory(findings: Findings) -> None:
    limit = memory_limit()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = [
        ("memory of the machine", size(total)),
        ("memory limit (cgroup)", "none" if limit is None else f"{size(limit.limit)}, {size(limit.used)} in use"),
    ]
    try:
        from octavo_engine.worker.sizing import memory_left
    except ImportError:
        # What is missing is told with the packages.
        findings.memory_left = None
    else:
        findings.memory_left = memory_left()
        rows.append(("left for weights and KV cache", size(findings.memory_left)))
    findings.tables["Memory"] = rows


def _examine_kernels(findings: Findings) -> None:
    rows = findings.tables["CPU kernels"] = []
    try:
        from octavo_engine.worker.backends.cpu import start_pool
        from octavo_kernels.cpu import variants
    except ImportError as error:
        rows.append(("missing", str(error)))
        findings.lacking.append(
            f"There are no CPU kernels ({error}): install a C++20 compiler (Debian: apt-get install g++) and run "
            "pip install --force-reinstall 'octavo[engine]'."
        )
        return
    found, forced = variants(), os.environ.get(ISA_VARIABLE, "")
    rows.append(("variants this machine runs", ", ".join(found)))
    rows.append((ISA_VARIABLE, forced or "not set: the fastest variant is taken"))
    try:
        pool = start_pool()
    except RuntimeError as error:
        rows.append(("variant in use", "none"))
        findings.lacking.append(str(error))
        return
    findings.variant, findings.threads = pool.variant, pool.threads
    rows.append(("variant in use", f"{pool.variant} (forced)" if forced else pool.variant))
    if pool.variant != found[-1]:
        findings.notes.append(f"{found[-1]} kernels would be faster than {pool.variant} ones: unset {ISA_VARIABLE}.")


def _examine_packages(findings: Findings) -> None:
    rows = findings.tables["Packages"] = [("python", platform.python_version())]
    missing = [name for name in _NEEDED if not _installed(name)]
    rows += ((name, _installed(name) or "missing") for name in _NEEDED)
    if missing:
        findings.lacking.append(f"Packages are missing ({', '.join(missing)}): run pip install 'octavo[engine]'.")


def _examine_models(findings: Findings) -> None:
    rows = findings.tables["Bundled models"] = []
    for name, model in BUNDLED.items():
        path = model.find()
        rows.append((f"bundled://{name}", str(path) if path else f"not here; run: octavo pull bundled://{name}"))
        if path is None:
            findings.notes.append(
                f"bundled://{name} is not here yet: run octavo pull bundled://{name}, or give a model of your own."
            )
        elif findings.memory_left is not None and findings.memory_left < model.gguf_bytes:
            findings.notes.append(
                f"bundled://{name} does not fit: its weights take {size(model.gguf_bytes)}, and "
                f"{size(findings.memory_left)} of memory are left."
            )
        else:
            findings.ready.append(f"bundled://{name}")


def _examine_sockets(findings: Findings) -> None:
    """The two processes of a server talk through sockets in a temporary folder."""
    try:
        with tempfile.TemporaryDirectory():
            pass
    except OSError as error:
        findings.lacking.append(
            f"No temporary folder can be written ({error}): name one in TMPDIR, for the sockets of the two processes."
        )
