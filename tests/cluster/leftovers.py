"""What a cluster can leave on a machine, listed; empty after `down`, whatever happened before.

`leftovers` names what can only be a cluster's. `everything` is the machine's whole state of the kinds a cluster
touches: equal before and after proves that nothing was left that nobody thought of.
"""

import subprocess
from pathlib import Path

from . import cgroups
from .layout import Layout, clusters_dir

HOST_FOLDERS = (
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/run/netns",
    "/run/kube-router.pid",
    "/etc/cni/net.d",
)
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
)


def leftovers(name: str = "") -> list[str]:
    """One line for each thing of the cluster `name`, or of any cluster, that is still there."""
    run = f"{clusters_dir() / name}/" if name else str(clusters_dir())
    inside = {pid for group in groups_of(name) for pid in cgroups.processes(group.name)}
    found = [f"process {pid}: {command[:160]}" for pid, command in processes() if pid in inside or run in command]
    found += [f"mount {line.split()[4]}" for line in mounts() if run in line]
    found += [f"control group {path}" for path in groups_of(name)]
    found += [f"folder {run}"] if Path(run).exists() else []
    return found


def cluster_names(checkout: Path | None = None) -> list[str]:
    """Every cluster that runs, or has left a group or a folder; only those that `checkout` started, if one is given."""
    groups = {group.name.removeprefix("octavo-") for group in groups_of("")}
    folders = {path.name for path in clusters_dir().glob("*") if path.is_dir()}
    return sorted(name for name in groups | folders if checkout in (None, _started_by(Layout(name))))


def _started_by(layout: Layout) -> Path | None:
    return Path(layout.checkout.read_text()) if layout.checkout.exists() else None


def groups_of(name: str) -> list[Path]:
    """The control groups of the cluster `name`; of every cluster, if empty."""
    return [g for g in control_groups() if g.name == f"octavo-{name}" or (not name and g.name.startswith("octavo-"))]


def everything() -> dict[str, set[str]]:
    """Links, routes, firewall rules, mounts, groups, network namespaces, settings; without what is other clusters'."""
    settings = (Path("/proc/sys") / setting for setting in KERNEL_SETTINGS)
    return {
        "links": lines("ip", "-brief", "link"),
        "routes": lines("ip", "route", "show", "table", "all"),
        "nft rules": lines("nft", "list", "ruleset"),
        "ipsets": lines("ipset", "list", "-name"),
        "mounts": {" ".join(line.split()[4:5]) for line in mounts()},
        "control groups": {str(path) for path in control_groups() if not path.name.startswith("octavo-")},
        "network namespaces": network_namespaces(),
        "folders": {folder for folder in HOST_FOLDERS if Path(folder).exists()},
        "kernel settings": {f"{path} {path.read_text().strip()}" for path in settings if path.exists()},
    }


def difference(before: dict[str, set[str]], after: dict[str, set[str]]) -> list[str]:
    return [f"{kind}: {item}" for kind, items in after.items() for item in sorted(items - before[kind])]


def lines(*command: str) -> set[str]:
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def control_groups() -> list[Path]:
    return [path for root in cgroups.hierarchies() for path in root.iterdir() if path.is_dir()]


def processes() -> list[tuple[int, str]]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            found.append((int(folder.name), command))
    return found


def network_namespaces() -> set[str]:
    """Those with a process in them that belongs to no cluster."""
    ours = {pid for group in groups_of("") for pid in cgroups.processes(group.name)}
    found = set()
    for pid, _ in processes():
        if pid not in ours:
            try:
                found.add(str(Path(f"/proc/{pid}/ns/net").readlink()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended while we looked, or it is guarded even from root: not one that we started
    return found
