"""Builds the kernels' own test program (native_test.cpp) into the cache outside the tree.

A program is built again when what it is made of changed. Builds at once take turns.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
_SOURCES: Final = (
    REPOSITORY / "CMakeLists.txt",
    Path(__file__).parent / "native_test.cpp",
    *(
        path
        for path in sorted((REPOSITORY / "kernels/octavo_kernels/cpu").rglob("*"))
        if path.suffix in {".cpp", ".hpp", ".txt"}
    ),
)


class BuildError(Exception):
    """The program could not be built; the text says why, and what to install."""


def build_program(sanitize: str = "", variants: Sequence[str] = ()) -> Path:
    """Return the program, built with the sanitizers ("address,undefined", "thread") and of the variants, or of all."""
    folder = _cache() / "-".join((sanitize or "plain").split(",") + list(variants))
    folder.mkdir(parents=True, exist_ok=True)
    program, stamp = folder / "kernels/octavo_kernels/cpu/octavo_cpu_test", folder / "built-from"
    wanted = _source_hash()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == wanted and program.exists()):
            _build(folder, sanitize, variants)
            stamp.write_text(wanted)
    return program


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(os.environ.get("OCTAVO_CACHE") or home / "octavo")
    return root / "kernels" / hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _build(folder: Path, sanitize: str, variants: Sequence[str]) -> None:
    options = {
        "OCTAVO_KERNEL_TEST": "ON",
        "OCTAVO_SANITIZE": sanitize,
        "OCTAVO_VARIANTS": ";".join(variants),
        "CMAKE_MAKE_PROGRAM": str(_tool("ninja")),
    }
    if ccache := shutil.which("ccache"):
        options["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    defined = [f"-D{name}={value}" for name, value in options.items()]
    _run([str(_tool("cmake")), "-S", str(REPOSITORY), "-B", str(folder), "-G", "Ninja", *defined])
    _run([str(_tool("cmake")), "--build", str(folder)])


def _tool(name: str) -> Path:
    """Return a program that pip installed beside this Python, or else one of the system's."""
    beside = Path(sys.executable).parent / name
    found = beside if beside.exists() else shutil.which(name)
    if found is None:
        raise BuildError(f"The kernels' test program needs {name}: run make setup.")
    return Path(found)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout[-6000:]}")
