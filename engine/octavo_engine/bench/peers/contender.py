"""Who is measured: a loaded engine in one format, ours or a peer's, behind the same three words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.model_files import ModelFiles
from octavo_engine.bench.peers.point import Timing
from octavo_engine.bench.workload import Item


class Running(Protocol):
    """A loaded engine."""

    def run(self, items: Sequence[Item]) -> Timing:
        """Run the items, all submitted at once. Raises PeerError or, for our own engine, BenchError."""
        ...

    def close(self) -> None:
        """End it and give its memory back."""
        ...


class Contender(NamedTuple):
    """One engine in one format. `name` is ENGINE:FORMAT, such as `openvino:file`; `file` is the GGUF as it is."""

    name: str
    title: str
    points: frozenset[str]
    """Names of the points it can be measured at."""
    start: Callable[[], Running]


class Settings(msgspec.Struct, frozen=True):
    """What everybody is started with, as far as they have it."""

    threads: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """OpenVINO's share of a step; its own default of 256 is slower."""
    cache_gib: int = 2
    max_model_len: int = 2048


class ServerCommand(NamedTuple):
    """How a peer's OpenAI server is started: it answers at `port` of the loopback once /health says 200."""

    title: str
    command: Sequence[str]
    variables: dict[str, str]
    model: str
    """The model's name there."""
    ready_seconds: float


class Peer(Protocol):
    """Another engine: how it is installed, in which formats it is measured, how its server is started."""

    @property
    def name(self) -> str:
        """One word, for options and folders."""
        ...

    @property
    def title(self) -> str:
        """As its authors write it."""
        ...

    def install(self, environment: Environment) -> dict[str, str]:
        """Install into an environment just created; return the versions. Raises PeerError."""
        ...

    def contenders(self, environment: Environment, files: ModelFiles, settings: Settings) -> list[Contender]:
        """Return what it is measured as, model files made where they must be. Raises PeerError."""
        ...

    def server(
        self, environment: Environment, files: ModelFiles, settings: Settings, port: int
    ) -> ServerCommand | None:
        """Return how to serve the model, None for a peer whose server is not measured. Raises PeerError."""
        ...
