"""Brings OCI image archives into a node's containerd, unless the node has the very same images already."""

import json
import subprocess
import tarfile
from pathlib import Path

from .build import Built
from .errors import ClusterError
from .layout import Node


def ctr(built: Built, node: Node, *arguments: str) -> str:
    command = [str(built.binaries / "ctr"), "-a", str(node.containerd_socket), "-n", "k8s.io", *arguments]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise ClusterError(f"'ctr {' '.join(arguments)}' on {node.name} failed: {finished.stderr.strip()}")
    return finished.stdout


def import_archive(built: Built, node: Node, archive: Path) -> None:
    if not names_and_digests(archive) <= images(built, node):
        ctr(built, node, "images", "import", str(archive))


def names_and_digests(archive: Path) -> set[tuple[str, str]]:
    """What the archive's index says is in it."""
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index else []
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise ClusterError(f"{archive} is no OCI image archive: {error}") from error
    return {(m.get("annotations", {}).get("io.containerd.image.name", ""), m["digest"]) for m in manifests}


def images(built: Built, node: Node) -> set[tuple[str, str]]:
    """Name and digest of every image on the node."""
    lines = ctr(built, node, "images", "ls").splitlines()[1:]
    return {(columns[0], columns[2]) for line in lines if len(columns := line.split()) > 2}
