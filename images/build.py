"""Build the product's images from the running environment: `python -m images.build [--out FOLDER] [engine|operator …]`.

No registry, no Docker: an image is the machine's own interpreter, the distributions installed beside it and the system
libraries these load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from images import layers, oci

REGISTRY = "octavo.dev"
USER = "65532:65532"
ENVIRONMENT = {
    "PATH": f"/usr/bin:/{layers.PYTHON}/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    # The last line that a failed pod wrote becomes a condition's message: no box of a terminal around it.
    "TYPER_USE_RICH": "0",
    "OCTAVO_MODELS": f"/{layers.MODELS}",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}

console = Console(stderr=True)


@dataclass(frozen=True)
class Image:
    """What one image holds beside Octavo: its extra's distributions, and the bundled model or not."""

    extra: str
    models: bool


IMAGES = {"engine": Image("engine", models=True), "operator": Image("operator", models=False)}


def tag() -> str:
    """Return the tag of images built from this tree: the distribution's version and the source digest."""
    return f"{installed_version('octavo')}-{layers.source_digest()}"


def reference(name: str) -> str:
    """Return the full name of an image built from this tree."""
    return f"{REGISTRY}/{name}:{tag()}"


def build(names: list[str], out: Path, *, say: Callable[[str], None]) -> list[Path]:
    """Build the named images into `out` unless they are there, and return their archives, in the order asked for.

    say: told what is being packed. Archives of the same images that are an hour old are removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    archives = [out / f"{name}-{tag()}.tar" for name in names]
    with layers.exclusive():
        for name, archive in zip(names, archives, strict=True):
            if not archive.exists():
                _build(name, archive, say)
                layers.discard_old(out, f"{name}-*.tar", keep=archive.stem)
    return archives


def _build(name: str, archive: Path, say: Callable[[str], None]) -> None:
    image = IMAGES[name]
    parts: dict[str, Callable[[], oci.Layer]] = {
        "the system's libraries": layers.system,
        "the interpreter": layers.interpreter,
        "packages": lambda: layers.packages(image.extra),
        **({"the bundled model": layers.models} if image.models else {}),
        "Octavo": layers.octavo,
    }
    packed = []
    for part, make in parts.items():
        say(f"{name}: packing {part}")
        packed.append(make())
    labels = {"org.opencontainers.image.title": f"octavo-{name}", "org.opencontainers.image.version": tag()}
    oci.write_archive(
        archive,
        [reference(name)],
        packed,
        entrypoint=["/usr/bin/octavo"],
        environment=ENVIRONMENT,
        user=USER,
        labels=labels,
    )


def main(
    names: Annotated[list[str] | None, typer.Argument(help="engine, operator; all of them if none is named")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the archives go; a cache folder by default.")] = None,
) -> None:
    """Build the images and print their names and archives."""
    chosen = names or list(IMAGES)
    unknown = [name for name in chosen if name not in IMAGES]
    if unknown:
        raise typer.BadParameter(f"no image {unknown[0]!r}: choose from {', '.join(IMAGES)}")
    with console.status("images") as status:
        archives = build(chosen, out or layers.cache_folder() / "images", say=status.update)
    for name, archive in zip(chosen, archives, strict=True):
        print(f"{reference(name)}\t{archive}")


if __name__ == "__main__":
    typer.run(main)
