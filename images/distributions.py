"""Copy installed distributions, with what they require, out of the running environment.

An image gets exactly the versions that the tests ran with, and building one needs no network.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return {canonical name: distribution} of the requirements and of all that these require.

    Raises PackageNotFoundError for a distribution that is required here and not installed.
    """
    found: dict[str, Distribution] = {}
    pending = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found[name] = distribution(name)
        pending += _requirements(found[name], requirement.extras)
    return found


def _requirements(dist: Distribution, extras: Iterable[str]) -> list[Requirement]:
    wanted = []
    for text in dist.requires or ():
        requirement = Requirement(text)
        environments = [{"extra": ""}, *({"extra": extra} for extra in extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(env) for env in environments):
            wanted.append(requirement)
    return wanted


def copy_distribution(dist: Distribution, target: Path) -> None:
    """Copy a distribution's files (its RECORD) into `target`, a site-packages folder.

    Console scripts, which lie outside site-packages, are left out.
    """
    if dist.files is None:
        raise PackageNotFoundError(f"{dist.metadata['Name']} has no RECORD: install it with pip")
    for file in dist.files:
        if ".." in file.parts:
            continue
        source, destination = Path(str(dist.locate_file(file))), target / str(file)
        if source.exists():
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, destination)
