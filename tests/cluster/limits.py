"""The one setting of the machine that a cluster needs changed: how many inotify instances root may have.

A cluster takes about thirty and the kernel's default is 128 for everybody: with an editor and a second cluster open,
the kubelet ends with 'too many open files'. The old value is kept in a file and put back when the last cluster goes.
"""

from pathlib import Path

from .layout import clusters_dir

SETTING = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH = 1024


def raise_limits() -> None:
    before = int(SETTING.read_text())
    if before < ENOUGH:
        _kept().write_text(str(before))
        SETTING.write_text(str(ENOUGH))


def restore_limits() -> None:
    """Unless a cluster is left, running or not."""
    if _kept().exists() and not any(path.is_dir() for path in clusters_dir().iterdir()):
        SETTING.write_text(_kept().read_text())
        _kept().unlink()


def _kept() -> Path:
    return clusters_dir() / "inotify-instances-before"
