"""One follower's share of a model on a GPU, and what it computes with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from octavo_engine.core.step import StepPlan
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.device import device_left
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.launched import Launched
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_engine.worker.gpu.sharding import Shard
from octavo_engine.worker.load import LoadedModel, load_share
from octavo_engine.worker.ranks.meeting import join
from octavo_engine.worker.ranks.messages import Begin, RankConfig
from octavo_engine.worker.runners import make_gpu_runner


def load_follower(config: RankConfig) -> GpuShare:
    """Load a follower's share on its GPU. Raises what `load.load_share` raises."""
    shard = Shard(config.rank, config.size)
    device = torch.device("cuda", config.rank) if config.device == "cuda" else torch.device(config.device)
    model = load_share(config.engine, _silent, device, shard, lambda: join(config.engine, shard, device))
    if model.gpu is not None and device.type == "cuda":
        # Rank 0 measures what its largest step takes, which takes all ranks; it asks for the least of all.
        device_left(model.gpu, config.engine)
    return GpuShare(model, config.engine)


class GpuShare:
    """A follower's model and runner: every plan that rank 0 runs, but nothing of it is sampled here."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        """`model` is loaded, its cache is not allocated yet."""
        self._model = model
        self._config = config
        self._runner: GpuRunner | None = None
        self._launched: deque[Launched] = deque()
        self._in_flight = 1

    def begin(self, begin: Begin) -> None:
        """Allocate the cache and make the runner, whose graphs all ranks capture together."""
        self._in_flight = begin.plans_in_flight
        self._model.executable.layout.allocate(begin.num_blocks)
        sizes = RunnerSizes(begin.max_num_seqs, begin.max_model_len, begin.max_num_batched_tokens)
        self._runner = make_gpu_runner(self._model, self._config, sizes, begin.host_places)

    @property
    def runner(self) -> GpuRunner:
        """Its runner. Raises RuntimeError before `begin`."""
        if self._runner is None:
            raise RuntimeError("Rank 0 sent a step before it said how large steps are.")
        return self._runner

    def execute(self, plan: StepPlan) -> Sequence[StepError]:
        """Queue a plan; return what failed of those that have ended, and it if it could not be queued."""
        launched = self.runner.launch(plan)
        self._launched.append(launched)
        return self._ended(0 if launched.error is not None else self._in_flight - 1)

    def finish(self) -> Sequence[StepError]:
        """Wait for the device, and return what failed."""
        return self._ended(0)

    def probe(self) -> None:
        """Compute one token of nobody's."""
        self.runner.probe()

    def open_adapter(self, folder: Path) -> OpenedAdapter:
        """Read an adapter's share."""
        return self._model.executable.open_adapter(folder)

    def set_adapter(self, slot: int, adapter: Any | None) -> None:
        """Make `slot` mean an adapter, or nothing."""
        self.runner.set_adapter(slot, adapter)

    def _ended(self, in_flight: int) -> list[StepError]:
        """Wait until no more than so many plans are in flight."""
        failed = []
        while len(self._launched) > in_flight:
            launched = self._launched.popleft()
            launched.finish()
            if launched.error is not None:
                failed.append(launched.error)
        return failed


def _silent(stage: str, fraction: float) -> None:
    """Rank 0 tells how far it is; the others are as far."""
