"""How the ranks of one engine meet."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.gpu.communicator import TorchCommunicator
from octavo_engine.worker.gpu.sharding import Shard


def join(config: EngineConfig, shard: Shard, device: torch.device) -> TorchCommunicator:
    """Meet the other ranks of an engine. Waits for them."""
    return TorchCommunicator(shard, device, Path(config.socket_folder), invariant=config.batch_invariant)
