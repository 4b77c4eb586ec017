"""Which shared libraries of the system a tree of programs and extension modules needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

_RESOLVED = re.compile(r"=> (/\S+) \(0x|^\s*(/\S*ld-linux\S*) \(0x", re.MULTILINE)


def shared_objects(root: Path) -> Iterator[Path]:
    """Yield the ELF files below `root` that the dynamic linker reads."""
    for path in root.rglob("*"):
        if (path.suffix == ".so" or ".so." in path.name) and path.is_file() and not path.is_symlink():
            yield path


def system_libraries(objects: Iterable[Path], *, inside: Iterable[Path]) -> set[Path]:
    """Return the libraries that `objects` load from outside the folders `inside`, by the paths the linker found.

    Raises CalledProcessError if `ldd` fails on all of a batch; objects that are not dynamic are passed over.
    """
    owned = tuple(str(path.resolve()) for path in inside)
    batch = [str(path) for path in objects]
    libraries: set[Path] = set()
    for start in range(0, len(batch), 200):
        # ldd exits 1 when one of the files is not dynamic; what it printed about the others is still right.
        listed = subprocess.run(["ldd", *batch[start : start + 200]], capture_output=True, text=True, check=False)
        if not listed.stdout:
            raise subprocess.CalledProcessError(listed.returncode, "ldd", listed.stdout, listed.stderr)
        for match in _RESOLVED.finditer(listed.stdout):
            path = match.group(1) or match.group(2)
            if not str(Path(path).resolve()).startswith(owned):
                libraries.add(Path(path))
    return libraries
