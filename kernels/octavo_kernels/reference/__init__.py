"""One plain torch function per kernel: its meaning, and its test oracle."""

from octavo_kernels.reference.activation import silu_mul
from octavo_kernels.reference.attention import AttentionPlan, paged_attention, plan_attention
from octavo_kernels.reference.experts import experts, route
from octavo_kernels.reference.linear import linear
from octavo_kernels.reference.lora import lora
from octavo_kernels.reference.norm import rms_norm
from octavo_kernels.reference.rope import rope, rope_and_cache, write_cache
from octavo_kernels.reference.tiles import SERIAL, TILE_ROWS, Workers, start_workers

__all__ = [
    "SERIAL",
    "TILE_ROWS",
    "AttentionPlan",
    "Workers",
    "experts",
    "linear",
    "lora",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope",
    "rope_and_cache",
    "route",
    "silu_mul",
    "start_workers",
    "write_cache",
]
