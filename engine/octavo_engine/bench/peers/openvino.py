"""OpenVINO GenAI, from its wheels: reads the same GGUF file."""

from __future__ import annotations

from functools import partial
from typing import Final

from octavo_engine.bench.peers.contender import Contender, ServerCommand, Settings
from octavo_engine.bench.peers.driver import DriverProcess
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.model_files import ModelFiles
from octavo_engine.bench.peers.pins import PINS
from octavo_engine.bench.peers.point import BATCH, DECODE, MIXED, PREFILL_512


class OpenVINO:
    """Its `ContinuousBatchingPipeline`."""

    name: Final = "openvino"
    title: Final = "OpenVINO GenAI"

    def install(self, environment: Environment) -> dict[str, str]:
        """Install the wheels."""
        pin = PINS[self.name]
        environment.step(f"installing {pin.requirement}")
        environment.pip("install", pin.requirement)
        return {name: environment.version(name) for name in (pin.distribution, "openvino")}

    def contenders(self, environment: Environment, files: ModelFiles, settings: Settings) -> list[Contender]:
        """Measure the file itself, and the Q8_0 form of it where llama.cpp has made one: for the best decode."""
        everything = frozenset(point.name for point in (MIXED, BATCH, DECODE, PREFILL_512))
        found = [self._contender(environment, "file", str(files.gguf), settings, everything)]
        q8 = files.requantized("Q8_0")
        if q8.is_file():
            found.append(self._contender(environment, "Q8_0", str(q8), settings, frozenset({DECODE.name})))
        return found

    def _contender(
        self, environment: Environment, form: str, model: str, settings: Settings, points: frozenset[str]
    ) -> Contender:
        title = f"{self.title}, {form}"
        told = {
            "model": model,
            "threads": settings.threads,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "cache_gib": settings.cache_gib,
        }
        start = partial(DriverProcess, title, environment, "with_openvino", told)
        return Contender(f"{self.name}:{form}", title, points, start)

    def server(
        self, environment: Environment, files: ModelFiles, settings: Settings, port: int
    ) -> ServerCommand | None:
        """Return None: its wheels hold no server."""
        return None
