"""What the container may use: memory and CPUs from cgroup v1 or v2, whichever rules this process.

A limit may sit on any ancestor, so the whole path is walked and the smallest wins. Inside a container the path in
/proc/self/cgroup may name the host's hierarchy, which is not mounted there: what does not exist is passed over and the
mount's own root is read, which then is the container's cgroup.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

SPIN_MICROSECONDS: Final = 50
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a huge number (LONG_MAX rounded down to a page)."""


class MemoryLimit(NamedTuple):
    """The tightest memory limit, and what is already taken of it and cannot be dropped (anonymous memory), in bytes."""

    limit: int
    used: int


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the tightest memory limit, None if there is none."""
    found = []
    for folder, version in _folders(root, "memory"):
        limit = _integer(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None and limit < _UNLIMITED:
            anonymous = _stat(folder / "memory.stat", "anon" if version == 2 else "total_rss")
            found.append(MemoryLimit(limit, anonymous))
    return min(found, default=None, key=lambda memory: memory.limit - memory.used)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the tightest CPU quota in CPUs, None if there is none."""
    found = []
    for folder, version in _folders(root, "cpu"):
        if version == 2:
            quota, period = [*_words(folder / "cpu.max"), "max", "max"][:2]
        else:
            quota, period = ((_words(folder / name) or ["-1"])[0] for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            found.append(int(quota) / int(period))
    return min(found, default=None)


def compute_threads(root: Path = Path("/")) -> int:
    """Return how many threads may compute: the CPUs of quota (rounded up) and affinity mask, at least one."""
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def spin_microseconds(threads: int, root: Path = Path("/")) -> int:
    """Return how long a waiting thread may spin before it sleeps.

    Not at all where a quota gives less than whole CPUs: what threads burn while they wait, the next step would lack.
    """
    quota = cpu_quota(root)
    return 0 if quota is not None and quota < threads else SPIN_MICROSECONDS


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield this process's existing cgroup folders for a controller, from the process's own up to the mount's root."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, version = mount, 2
            if not (base / "cgroup.controllers").exists():
                base = mount / "unified"
        elif controller in controllers.split(","):
            base, version = mount / controllers, 1
            if not base.is_dir():
                base = mount / controller
        else:
            continue
        relative = PurePosixPath(path.lstrip("/"))
        for part in (relative, *relative.parents) if relative.parts else (relative,):
            if (base / part).is_dir():
                yield base / part, version


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _integer(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def _stat(path: Path, key: str) -> int:
    values = dict(line.split(maxsplit=1) for line in _lines(path) if " " in line)
    return int(values.get(key, "0"))
