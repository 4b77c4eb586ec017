"""The C++ kernels, their build and their binding."""

from octavo_kernels.cpu._native import (
    CacheLayout,
    Layer,
    Pool,
    Rope,
    Step,
    Weight,
    attend,
    embed,
    linear,
    logits,
    mlp,
    pack_into,
    plan_packing,
    rms_norm,
    variants,
)

__all__ = [
    "CacheLayout",
    "Layer",
    "Pool",
    "Rope",
    "Step",
    "Weight",
    "attend",
    "embed",
    "linear",
    "logits",
    "mlp",
    "pack_into",
    "plan_packing",
    "rms_norm",
    "variants",
]
