"""A peer's own virtual environment below the cache folder: made on request, never shared with Octavo's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.heartbeat import Say, heartbeat
from octavo_engine.model.files import cache_root, write_atomically

_LAST_CHARACTERS: Final = 200
_SHOWN_CHARACTERS: Final = 100
_TELL_EVERY_SECONDS: Final = 15.0


def peers_root() -> Path:
    """Return the folder that holds every peer's environment. It need not exist."""
    return cache_root() / "peers"


class Environment:
    """The folder of one peer: `venv`, what was built, the installation's log, and a mark that it is complete."""

    def __init__(self, root: Path, name: str, say: Say | None = None) -> None:
        """Know the folder; nothing is made. `say` takes lines that tell how far an installation is."""
        self.name = name
        self._say = say or _silent
        # Commands of the installation run in it: a relative path would mean another place there.
        self.folder = root.absolute() / name
        self.venv = self.folder / "venv"
        self.log = self.folder / "install.log"
        self._mark = self.folder / "installed.json"
        self._made_here = self.folder / ".made-by-octavo"
        self._temporary = self.folder / "tmp"

    @property
    def python(self) -> Path:
        """The peer's interpreter."""
        return self.venv / "bin" / "python"

    def versions(self) -> dict[str, str] | None:
        """Return what is installed, None if the installation is not there or not complete."""
        try:
            return msgspec.json.decode(self._mark.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return None

    def create(self) -> None:
        """Make an empty environment in place of one that was made here. Raises PeerError for anybody else's folder."""
        if self.folder.exists() and not self._is_ours():
            raise PeerError(
                f"{self.folder} is there and no environment of Octavo's, so nothing is installed over it: move it "
                "away, or name another folder with --environments."
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._made_here.touch()
        # What pip fetches and a compiler writes lies here, too: seen as it grows, and gone with the folder.
        self._temporary.mkdir()
        self.step("making the environment")
        self.call(sys.executable, "-m", "venv", str(self.venv))

    def _is_ours(self) -> bool:
        """Whether the folder is an environment, whole or half installed, or empty."""
        if not self.folder.is_dir():
            return False
        return self._made_here.exists() or self.versions() is not None or not any(self.folder.iterdir())

    def finish(self, versions: Mapping[str, str]) -> None:
        """Mark the installation complete."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        write_atomically(self._mark, msgspec.json.encode(dict(versions)))

    def step(self, text: str) -> None:
        """Say what the installation does next."""
        self._say(f"{self.name}: {text}")

    def pip(self, *arguments: str) -> None:
        """Run the environment's pip. Raises PeerError."""
        self.call(str(self.python), "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input")

    def version(self, distribution: str) -> str:
        """Return the version of what pip installed. Raises PeerError."""
        code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        return self.call(str(self.python), "-c", code, distribution).strip()

    def call(self, *command: str) -> str:
        """Run a command of the installation; return its output. Raises PeerError.

        The log takes the output as it comes. The last line of it, and how large the environment is by then, are said
        every few seconds.
        """
        temporary = {"TMPDIR": str(self._temporary)} if self._temporary.is_dir() else {}
        try:
            with self.log.open("a+b") as log, heartbeat(self._say, self._progress, _TELL_EVERY_SECONDS):
                log.write(f"$ {' '.join(command)}\n".encode())
                log.flush()
                begun = log.tell()
                ended = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    env=self.variables(temporary),
                    cwd=self.folder,
                )
                log.seek(begun)
                output = log.read().decode(errors="replace")
        except OSError as error:
            raise PeerError(f"{self.name} cannot be installed: {command[0]}: {error.strerror}.") from error
        if ended.returncode:
            raise PeerError(f"{self.name} cannot be installed: {_last_words(output)} (all of it in {self.log}).")
        return output

    def _progress(self, seconds: float) -> str:
        return f"{self.name}: {size(self.folder) / 1e6:,.0f} MB, {seconds:.0f} s: {last_line(self.log)}"

    def variables(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables a process of this environment runs with: the environment first, ours left out."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        path = os.pathsep.join([str(self.venv / "bin"), kept.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "VIRTUAL_ENV": str(self.venv), **(extra or {})}


def size(folder: Path) -> int:
    """Return the bytes of the files in a folder, of those that stay while it looks. A link counts as itself."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += os.lstat(os.path.join(place, name)).st_size
    return found


def last_line(log: Path) -> str:
    """Return the last line of a log that is being written, cut to what a terminal shows; "" for none."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").replace("\r", "\n").split("\n")
    shown = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"


def _silent(text: str) -> None:
    """Say nothing."""


def _last_words(output: str) -> str:
    """Return the line that says what went wrong: pip's own first, else the last one."""
    lines: Sequence[str] = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    words = errors[0] if errors else lines[-1] if lines else "it said nothing"
    return words[:_LAST_CHARACTERS].rstrip(".")
