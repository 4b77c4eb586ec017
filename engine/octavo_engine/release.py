"""Which Octavo this is: its version, and the commit when it runs from a git checkout."""

from __future__ import annotations

import functools
import os
import subprocess
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

_GIT_SECONDS: Final = 10.0
CHANGED: Final = "+changes"


def version() -> str:
    """Return the installed version, "from source" where none is installed."""
    try:
        return installed_version("octavo")
    except PackageNotFoundError:
        return "from source"


@functools.cache
def commit() -> str:
    """Return the commit that this code was checked out from, see `commit_of`. Asked once: later edits run later."""
    return commit_of(Path(__file__))


def commit_of(file: Path) -> str:
    """Return the commit of the checkout that a file belongs to, with "+changes" if a tracked file differs from it.

    "" for a file that no checkout tracks, such as one of an environment that merely lies in somebody's checkout, and
    where there is no git to ask.
    """
    if not _git(file.parent, "ls-files", "--", file.name):
        return ""
    return _git(file.parent, "describe", "--always", "--exclude=*", "--abbrev=40", f"--dirty={CHANGED}")


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says, "" if it fails. It takes no lock that somebody's own git would wait for."""
    # A hook's variables would name another repository than the folder's.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        asked = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if asked.returncode else asked.stdout.strip()
