"""One control group per cluster: it holds every process of it, and is how `down` finds them after any kind of death.

Version 1 has a tree per controller, version 2 one tree. The cluster sees its own group as the root (by a cgroup
namespace), so whatever containerd and the kubelet make lies below it.
"""

import os
import time
from pathlib import Path

from .errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
# A group counts as one process against those outside it; a busy test run outside would starve a whole cluster.
CPU_SHARE = 4


def hierarchies() -> dict[Path, str]:
    """Mount point -> mount options that name the controllers; version 2 has the options ''."""
    found: dict[Path, str] = {}
    unified: dict[Path, str] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, options, *_ = line.split()
        if kind == "cgroup2":
            unified[Path(mount_point)] = ""
        elif kind == "cgroup":
            generic = {"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "xattr", "clone_children"}
            names = [o for o in options.split(",") if o not in generic and not o.startswith("release_agent=")]
            found[Path(mount_point)] = ",".join(["none", *names] if names[0].startswith("name=") else names)
    if not found and not unified:
        raise ClusterError(f"no control groups are mounted below {ROOT}: containers need them")
    return found or unified


def groups(name: str) -> list[Path]:
    return [mount_point / name for mount_point in hierarchies()]


def create(name: str) -> list[Path]:
    """Make the group in every hierarchy; returns the files by which a process outside the namespaces enters it."""
    for mount_point, options in hierarchies().items():
        group = mount_point / name
        group.mkdir(exist_ok=True)
        if options == "":
            controllers = (mount_point / "cgroup.controllers").read_text().split()
            (mount_point / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
            (group / "cpu.weight").write_text(str(100 * CPU_SHARE))
            (group / "outside").mkdir(exist_ok=True)
        elif "cpuset" in options.split(","):  # a new cpuset is empty, and nobody may enter an empty one
            for resource in ("cpuset.cpus", "cpuset.mems"):
                (group / resource).write_text((mount_point / resource).read_text())
        if "cpu" in options.split(","):
            (group / "cpu.shares").write_text(str(1024 * CPU_SHARE))
    return [(g / "outside" if (g / "outside").exists() else g) / "cgroup.procs" for g in groups(name)]


def enter_namespace(name: str) -> list[str]:
    """Prefix of a command that runs with the group as the root of its cgroup namespace."""
    enter = "".join(f"echo 0 > '{group}/cgroup.procs'; " for group in groups(name))
    return ["sh", "-ec", f'{enter} exec unshare --cgroup "$@"', "octavo-cluster"]


def namespace_setup() -> list[list[str]]:
    """Commands that show a process in its new cgroup namespace its own group as /sys/fs/cgroup."""
    trees = hierarchies()
    commands = [["umount", "--recursive", "--lazy", str(ROOT)]]
    if list(trees.values()) == [""]:
        # A group with processes of its own may not hand controllers to groups below: ours move into `init`.
        enable = (
            "mkdir -p init; echo 1 > init/cgroup.procs; sed 's/[^ ]*/+&/g' cgroup.controllers > cgroup.subtree_control"
        )
        return [*commands, ["mount", "-t", "cgroup2", "cgroup2", str(ROOT)], ["sh", "-ec", f"cd {ROOT}; {enable}"]]
    commands.append(["mount", "-t", "tmpfs", "tmpfs", str(ROOT)])
    for mount_point, options in trees.items():
        commands.append(["mkdir", "-p", str(mount_point)])
        commands.append(["mount", "-t", "cgroup", "-o", options, "cgroup", str(mount_point)])
    return commands


def below(group: Path) -> list[Path]:
    """The group and every group in it, deepest first."""
    return [Path(folder) for folder, _, _ in os.walk(group, topdown=False)] if group.exists() else []


def processes(name: str) -> set[int]:
    """Ids of every process in the cluster's group, in the host's numbering."""
    found: set[int] = set()
    for group in groups(name):
        for folder in below(group):
            try:
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
            except OSError:
                if folder.exists():
                    raise
                # The group went away while we looked: ENOENT, or ENODEV from a file already open.
    return found


def remove(name: str, patience: float = 10) -> None:
    """Remove the groups. The kernel says EBUSY until the last exit in a group has been accounted for."""
    deadline = time.monotonic() + patience
    for group in groups(name):
        for folder in below(group):
            while folder.exists():
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"cannot remove the control group {folder}: {error}") from error
                    time.sleep(0.02)
