"""What Octavo keeps on this machine's disk: how large it is, what it is for, how it is cleared."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from octavo_engine.commands.findings import Findings, size
from octavo_engine.contract import ENV_CACHE
from octavo_engine.model.files import cache_root

_FOLDERS: Final = {
    "models": "bundled models; octavo pull brings them back",
    "packed": "weights as the kernels read them; packed again when they are needed",
    "digests": "SHA-256 sums of models; computed again when they are needed",
    "peers": "environments of octavo bench peers; its --install makes them again",
}


class Held(NamedTuple):
    """How many files a folder has, and their bytes."""

    files: int
    nbytes: int


def examine_cache(findings: Findings) -> None:
    """Tell of each folder of the cache, and whether it can be written."""
    root = cache_root()
    rows = findings.tables["Cache"] = [("folder", f"{root} ({ENV_CACHE} names another)")]
    for name, purpose in _FOLDERS.items():
        held = measure(root / name)
        if held.files:
            rows.append((name, f"{size(held.nbytes)} in {held.files} files: {purpose}"))
    if others := sorted(path.name for path in _entries(root) if path.name not in _FOLDERS):
        rows.append(("others", f"{', '.join(others)}: what builds and tests of the repository keep"))
    rows.append(("to clear one", f"rm -r {shlex.quote(str(root))}/NAME, while no engine starts"))
    if not _writable(root):
        findings.notes.append(
            f"The cache {root} cannot be written, so every start packs its model's weights again: set {ENV_CACHE} to a "
            "folder that can be."
        )


def measure(path: Path) -> Held:
    """Return what a folder holds with all below it; links are not followed. What is no folder holds nothing."""
    files = nbytes = 0
    for folder, _, names in os.walk(path):
        files += len(names)
        nbytes += sum(_nbytes(Path(folder, name)) for name in names)
    return Held(files, nbytes)


def _nbytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        # Another process removed it since it was listed.
        return 0


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which need not be there yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
