"""The GPUs that kernels are compiled for: what a block may use on them, and which of them Octavo serves on."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from triton.backends.compiler import GPUTarget


class Target(NamedTuple):
    """An architecture, and what of it decides how a kernel is shaped."""

    name: str
    """As the compilers name it: sm_80, sm_90, gfx942. The checked-in tables have this name."""
    backend: str
    """Triton's: cuda or hip."""
    architecture: int | str
    warp_size: int
    shared_memory: int
    """Bytes that one block may have."""
    processors: int
    """Multiprocessors (compute units): how many blocks run at the same time, at the least."""
    fp8: bool
    """Whether e4m3 is served here."""

    @property
    def gpu(self) -> Any:
        """Return what Triton compiles for."""
        return GPUTarget(self.backend, self.architecture, self.warp_size)

    @property
    def hopper(self) -> bool:
        """Return whether tensor descriptors are the hardware's own (TMA)."""
        return self.backend == "cuda" and isinstance(self.architecture, int) and self.architecture >= 90


# 99 KiB is what the smallest of the 8.x family gives a block (A100: 163): what is compiled runs on each of them.
SM_80: Final = Target("sm_80", "cuda", 80, 32, 99 << 10, 108, fp8=False)
SM_90: Final = Target("sm_90", "cuda", 90, 32, 227 << 10, 132, fp8=True)
GFX942: Final = Target("gfx942", "hip", "gfx942", 64, 64 << 10, 304, fp8=True)
TARGETS: Final = {target.name: target for target in (SM_80, SM_90, GFX942)}

INTERPRETER: Final = Target("interpreter", "cuda", 90, 32, 227 << 10, 1, fp8=True)
"""CPU tensors in Triton's interpreter: every program runs after the other, so none is split off to fill a GPU."""


def fp8_refusal(target: Target) -> str | None:
    """Return the sentence that refuses e4m3 weights or KV cache on `target`; None where they are served."""
    if target.fp8:
        return None
    return (
        f"FP8 (e4m3) needs a GPU of compute capability 9.0 or newer and this one is served as {target.name}: "
        "use --quantization int8 or int4 for weights, and --kv-cache-dtype auto for the cache."
    )


def target_of_device(device: torch.device) -> Target:
    """Return the nearest target of a live device, with the device's own processors.

    Raises ValueError, with the remedy, for a device that Octavo does not serve on.
    """
    if device.type == "cpu":
        return INTERPRETER
    if device.type != "cuda":
        raise ValueError(f"Octavo has no kernels for {device.type} devices: use --device cuda or --device cpu.")
    if torch.version.hip is not None:
        raise ValueError(
            "Octavo's kernels are compiled for ROCm but not served on it yet: use an NVIDIA GPU or --device cpu."
        )
    found = torch.cuda.get_device_properties(device)
    return nearest_target(found.name, (found.major, found.minor), found.multi_processor_count)


def nearest_target(name: str, capability: tuple[int, int], processors: int) -> Target:
    """Return the newest target that a GPU of this compute capability runs.

    Raises ValueError for one older than all of them.
    """
    if capability < (8, 0):
        older = f"{capability[0]}.{capability[1]}"
        raise ValueError(
            f"{name} has compute capability {older} and Octavo's kernels need 8.0 (Ampere) or newer: "
            "use a newer GPU or --device cpu."
        )
    return (SM_90 if capability >= (9, 0) else SM_80)._replace(processors=processors)
