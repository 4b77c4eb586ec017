"""Where a model is computed: what `--device` means on this machine."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from octavo_engine.ipc.config import Device, EngineConfig
from octavo_engine.worker.sizing import StartError

if TYPE_CHECKING:
    from octavo_engine.worker.gpu.model import GpuModel

NVIDIA: Final = Path("/dev/nvidiactl")
"""What the driver makes, in a container too. To ask torch takes two seconds and 650 MB, which a CPU is spared."""
DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_BATCHED_TOKENS: Final = 2048

logger = logging.getLogger(__name__)


def serves_on_gpu(device: Device) -> bool:
    """Say whether the GPU engine is to serve. Raises StartError, with the remedy, if it is asked for and cannot."""
    if device == "cpu" or (device == "auto" and not NVIDIA.exists()):
        return False
    refusal = _refusal()
    if not refusal:
        return True
    if device == "cuda":
        raise StartError(refusal)
    logger.warning("This machine has an NVIDIA driver, and the CPU serves: %s", refusal)
    return False


def _refusal() -> str:
    """Return why no GPU can serve here, empty if one can."""
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            return (
                f"--device cuda needs {module}, which is not installed: pip install octavo[gpu], or use --device cpu."
            )
    if not any(map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang"))):
        return (
            "--device cuda needs a C compiler, with which Triton builds what starts its kernels: install gcc (Debian: "
            "apt-get install gcc), or use --device cpu."
        )
    import torch

    from octavo_kernels.triton.targets import target_of_device

    if torch.version.hip is None and not torch.cuda.is_available():
        return (
            "--device cuda finds no NVIDIA GPU here: check nvidia-smi, and in Kubernetes that the pod asks for "
            "nvidia.com/gpu, or use --device cpu."
        )
    try:
        target_of_device(torch.device("cuda", 0))
    except ValueError as error:
        return str(error)
    return ""


def gpu_batched_tokens(config: EngineConfig) -> int:
    """Return how many tokens a step on a GPU holds: never less than one of each sequence that was asked for."""
    return config.max_num_batched_tokens or max(DEFAULT_BATCHED_TOKENS, config.max_num_seqs)


def device_left(model: GpuModel, config: EngineConfig) -> int:
    """Return the bytes that weights and the largest step leave on the device, measured; the least of all ranks.

    All ranks measure at the same time. Raises StartError.
    """
    from octavo_engine.worker.gpu.compute import RunnerSizes
    from octavo_engine.worker.gpu.memory import profile

    tokens = gpu_batched_tokens(config)
    rows = config.max_num_seqs or min(DEFAULT_MAX_NUM_SEQS, tokens)
    try:
        profiled = profile(model, RunnerSizes(rows, config.max_model_len or model.max_position, tokens))
    except MemoryError as error:
        raise StartError(f"The model does not fit ({error}): lower --max-num-batched-tokens.") from error
    logger.info("Device memory: %s", profiled)
    return model.communicator.least(profiled.left)
