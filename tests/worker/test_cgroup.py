import os

import pytest

from octavo_engine.worker.cgroup import MemoryLimit, compute_threads, cpu_quota, memory_limit, spin_microseconds

GIB = 1 << 30
V1_NO_LIMIT = 9223372036854771712

V2 = "0::/kubepods/pod1/engine\n"
V1 = "4:memory:/pod1/engine\n3:cpu,cpuacct:/pod1/engine\n0::/\n"
V1_IN_A_CONTAINER = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"


def tree(root, cgroup, files):
    files = {"proc/self/cgroup": cgroup} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}".rstrip("\n") + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {"cgroup.controllers": "", "kubepods/pod1/engine/memory.max": "max"}, None),
        (
            V2,
            {
                "cgroup.controllers": "",
                "kubepods/pod1/engine/memory.max": GIB,
                "kubepods/pod1/engine/memory.stat": "anon 1000\nfile 99",
            },
            MemoryLimit(GIB, 1000),
        ),
        (
            V2,
            {
                "cgroup.controllers": "",
                "kubepods/pod1/engine/memory.max": "max",
                "kubepods/memory.max": 3 * GIB,
                "kubepods/pod1/memory.max": 2 * GIB,
            },
            MemoryLimit(2 * GIB, 0),
        ),
        ("0::/\n", {"cgroup.controllers": "", "memory.max": GIB}, MemoryLimit(GIB, 0)),
        ("0::/../other\n", {"cgroup.controllers": "", "memory.max": GIB}, MemoryLimit(GIB, 0)),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": V1_NO_LIMIT,
                "memory/pod1/engine/memory.limit_in_bytes": GIB,
                "memory/pod1/engine/memory.stat": "rss 1\ntotal_rss 77",
            },
            MemoryLimit(GIB, 77),
        ),
        (V1, {"memory/pod1/engine/memory.limit_in_bytes": V1_NO_LIMIT}, None),
        (V1_IN_A_CONTAINER, {"memory/memory.limit_in_bytes": GIB}, MemoryLimit(GIB, 0)),
        (V1, {}, None),
    ],
)
def test_memory_limit(tmp_path, cgroup, files, expected):
    assert memory_limit(tree(tmp_path, cgroup, files)) == expected


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {"cgroup.controllers": "", "kubepods/pod1/engine/cpu.max": "max 100000"}, None),
        (V2, {"cgroup.controllers": "", "kubepods/pod1/engine/cpu.max": "150000 100000"}, 1.5),
        (
            V2,
            {
                "cgroup.controllers": "",
                "kubepods/pod1/engine/cpu.max": "400000 100000",
                "kubepods/cpu.max": "50000 100000",
            },
            0.5,
        ),
        (
            V1,
            {"cpu,cpuacct/pod1/engine/cpu.cfs_quota_us": "-1", "cpu,cpuacct/pod1/engine/cpu.cfs_period_us": "100000"},
            None,
        ),
        (
            V1,
            {
                "cpu,cpuacct/pod1/engine/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/pod1/engine/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (V1_IN_A_CONTAINER, {"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25),
        (V1, {}, None),
    ],
)
def test_cpu_quota(tmp_path, cgroup, files, expected):
    assert cpu_quota(tree(tmp_path, cgroup, files)) == expected


def test_threads_are_at_least_one_and_at_most_the_affinity_mask(tmp_path):
    cpus = len(os.sched_getaffinity(0))
    quota = "sys/fs/cgroup/cpu.max"
    tree(tmp_path, "0::/\n", {"cgroup.controllers": "", "cpu.max": "10000 100000"})
    assert compute_threads(tmp_path) == 1
    (tmp_path / quota).write_text("110000 100000")
    assert compute_threads(tmp_path) == min(2, cpus), "a part of a CPU is one more thread"
    (tmp_path / quota).write_text("max 100000")
    assert compute_threads(tmp_path) == cpus
    (tmp_path / quota).write_text(f"{(cpus + 9) * 100000} 100000")
    assert compute_threads(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "threads", "spins"), [("max", 2, True), ("200000", 2, True), ("150000", 2, False)])
def test_threads_spin_unless_a_quota_is_less_than_they_are(tmp_path, quota, threads, spins):
    tree(tmp_path, "0::/\n", {"cgroup.controllers": "", "cpu.max": f"{quota} 100000"})
    assert (spin_microseconds(threads, tmp_path) > 0) is spins
