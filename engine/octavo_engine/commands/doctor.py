"""`octavo doctor`: what this machine offers, as the engine sees it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from octavo_engine.model.bundled import BUNDLED
from octavo_engine.model.files import cache_root
from octavo_engine.worker.cgroup import compute_threads, cpu_quota, memory_limit, spin_microseconds

_ISA: Final = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
_PACKAGES: Final = (
    "octavo", "fastapi", "uvicorn", "pyzmq", "msgspec", "numpy", "tokenizers", "safetensors", "gguf", "llguidance",
    "torch", "triton",
)  # fmt: skip

Row = tuple[str, str]


def doctor() -> int:
    """Print the tables. Returns the exit code: 1 if a package or the kernels that the engine needs are missing."""
    console = Console()
    packages = list(_packages())
    kernels = list(_kernels())
    for title, rows in (
        ("Processor", list(_processor())),
        ("Limits", list(_limits())),
        ("CPU kernels", kernels),
        ("Packages", packages),
        ("Models", list(_models())),
    ):
        table = Table(title=title, title_justify="left", show_header=False)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    optional = {"torch", "triton"}
    missing = any(found == "missing" and name not in optional for name, found in packages)
    return 1 if missing or kernels[0][0] == "missing" else 0


def _processor() -> Iterator[Row]:
    names, flags = set(), set()
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            names.add(value.strip())
        elif key.strip() in ("flags", "Features"):
            flags |= set(value.split())
    yield "model", ", ".join(sorted(names)) or platform.machine()
    yield "instruction sets", ", ".join(name for name in _ISA if name in flags) or "baseline only"
    yield "usable CPUs", str(len(os.sched_getaffinity(0)))


def _limits() -> Iterator[Row]:
    quota = cpu_quota()
    yield "CPU quota (cgroup)", "none" if quota is None else f"{quota:g} CPUs"
    memory = memory_limit()
    yield "memory limit (cgroup)", "none" if memory is None else f"{_size(memory.limit)}, {_size(memory.used)} in use"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield "memory of the machine", _size(total)


def _kernels() -> Iterator[Row]:
    """Say what the engine would compute with; the first row is `missing` where it could not."""
    try:
        from octavo_engine.worker.backends.cpu import start_pool
        from octavo_kernels.cpu import variants
    except ImportError as error:
        yield "missing", f"{error}; install g++ and run: pip install --force-reinstall octavo[engine]"
        return
    try:
        pool, spin = start_pool(), spin_microseconds(compute_threads())
    except RuntimeError as error:
        yield "missing", f"OCTAVO_CPU_ISA={os.environ.get('OCTAVO_CPU_ISA', '')}: {error}"
        return
    yield "variant in use", pool.variant
    yield "variants this machine runs", ", ".join(variants())
    how = f"each spins {spin} µs, then sleeps" if spin else "none spins: the quota is less than whole CPUs"
    yield "threads", f"{pool.threads}; {how}"
    packed = list((cache_root() / "packed").glob("*.packed"))
    size = sum(path.stat().st_size for path in packed)
    yield "packed weights kept", f"{len(packed)} files, {_size(size)} in {cache_root() / 'packed'}"


def _packages() -> Iterator[Row]:
    yield "python", platform.python_version()
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "missing"


def _models() -> Iterator[Row]:
    yield "cache", str(cache_root())
    for name, model in BUNDLED.items():
        path = model.find()
        yield f"bundled://{name}", str(path) if path else f"not here; run: octavo pull bundled://{name}"


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
