"""The C++ kernels, their build and their binding."""

from octavo_kernels.cpu._native import (
    CacheLayout,
    Pool,
    Weight,
    linear,
    pack_into,
    paged_attention,
    plan_packing,
    rms_norm,
    rope_and_cache,
    variants,
)

__all__ = [
    "CacheLayout",
    "Pool",
    "Weight",
    "linear",
    "pack_into",
    "paged_attention",
    "plan_packing",
    "rms_norm",
    "rope_and_cache",
    "variants",
]
