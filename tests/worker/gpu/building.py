"""GPU models on CPU tensors, whose kernels Triton's interpreter runs."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.worker.gpu.load import ModelSizes, Place, load_gpu
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.precision import GpuPrecision

EXACT = GpuPrecision("float32", "dense", "float32")


def build_gpu(
    folder: Path, precision: GpuPrecision = EXACT, place: Place | None = None, **sizes: int | bool
) -> GpuModel:
    """Load a folder's model. sizes: as `ModelSizes` has them."""
    chosen = ModelSizes(**({"max_tokens": 64} | sizes))
    place = place or Place(torch.device("cpu"))
    return load_gpu(open_checkpoint(folder), precision, place, chosen, lambda stage, fraction: None)
