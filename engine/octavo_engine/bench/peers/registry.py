"""The peers by name, what of them is installed, and installing what is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from octavo_engine.bench.peers.contender import Peer
from octavo_engine.bench.peers.environment import Environment, size
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.llamacpp import LlamaCpp
from octavo_engine.bench.peers.notes import FAILURES, Notes
from octavo_engine.bench.peers.openvino import OpenVINO
from octavo_engine.bench.peers.pins import other_version
from octavo_engine.bench.peers.vllm import VLLM

# llama.cpp first: its tools make the files that others are measured on, too.
PEERS: Final[tuple[Peer, ...]] = (LlamaCpp(), OpenVINO(), VLLM())


class Installed(NamedTuple):
    """A peer with its environment."""

    peer: Peer
    environment: Environment
    versions: dict[str, str]


def choose(names: Sequence[str]) -> list[Peer]:
    """Return the peers of these names, all for none. Raises PeerError for a name that is none."""
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            raise PeerError(f"'{name}' is no peer: write {', '.join(known)}.")
    return [peer for peer in PEERS if not names or peer.name in names]


def find(peers: Sequence[Peer], root: Path, install: bool, notes: Notes) -> list[Installed]:
    """Return the peers that are installed, or can be; of each other one, note why it is left out."""
    found = []
    for peer in peers:
        environment = Environment(root, peer.name, notes.say)
        versions = environment.versions()
        try:
            if versions is None and install:
                notes.say(f"installing {peer.title} into {environment.folder}")
                environment.create()
                versions = peer.install(environment)
                environment.finish(versions)
                notes.say(f"{peer.title} is installed: {size(environment.folder) / 1e6:,.0f} MB")
        except FAILURES as error:
            notes.leave_out(peer.name, peer.title, error)
            continue
        if versions is None:
            notes.leave_out(peer.name, peer.title, "it is not installed; --install does that.")
            continue
        if other := other_version(peer.name, versions):
            remedy = f"remove {environment.folder} and use --install for the pinned one."
            notes.say(f"{peer.title}: {other} is measured; {remedy}")
        found.append(Installed(peer, environment, versions))
    return found
