"""What `--dtype`, `--quantization` and `--kv-cache-dtype` mean on a CPU: what each matrix is packed as.

dtype     quantization   stored in floats    stored quantised (GGUF)
auto      auto           bfloat16            as stored, times int8 activations
auto      none           bfloat16            dequantised to bfloat16
float32   auto, none     float32             dequantised to float32: the exact mode
bfloat16  auto, none     bfloat16            dequantised to bfloat16
not f32   int8, int4     quantised at load   dequantised, quantised again
"""

from __future__ import annotations

from typing import Final, NamedTuple

from octavo_engine.model.qtensor import FLOAT_KINDS
from octavo_engine.model.spec import UnsupportedModelError

GROUP: Final = 32
"""Input features that share a scale: quantised rows are whole groups."""
PACKABLE: Final = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"})
"""GGUF kinds that are computed as they are stored."""
_CACHE_TYPES: Final = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}


class Precision(NamedTuple):
    """How a model is held. `weights`: F32, BF16, INT8 or INT4, or "" for as stored. `cache`: f32, bf16 or int8."""

    weights: str
    cache: str

    def target(self, kind: str, columns: int, *, delicate: bool = False) -> str:
        """Return what a matrix stored as `kind` is packed as: one of `weights`, or "" for as stored.

        Quantised at load are matrices of whole groups only. The output head and the embedding are `delicate`: they are
        never made int4, which costs more there than anywhere else. A stored kind without a layout of its own (Q5_K,
        Q3_K …) becomes int8, which loses less than its storage did.
        """
        wanted = self.weights
        if wanted == "":
            return "BF16" if kind in FLOAT_KINDS else "" if kind in PACKABLE else "INT8"
        if wanted in ("INT8", "INT4") and columns % GROUP:
            return "BF16"
        return "INT8" if wanted == "INT4" and delicate else wanted

    @property
    def dtype(self) -> str:
        """The type that products are computed in, as the engine reports it."""
        return {"F32": "float32", "BF16": "bfloat16"}.get(self.weights, "int8")


def choose_precision(dtype: str, quantization: str, kv_cache_dtype: str, stored: str) -> Precision:
    """Return the precision for the command line's choices and the kind most weights are `stored` in.

    Raises UnsupportedModelError with a sentence for what a CPU does not serve, or what contradicts itself.
    """
    if dtype == "float16":
        raise UnsupportedModelError(
            "--dtype float16 is not served on a CPU, which has no products of that type: use bfloat16, which takes the "
            "same memory, or float32, which is exact."
        )
    if quantization == "fp8":
        raise UnsupportedModelError("--quantization fp8 is not served on a CPU: use int8, which takes the same memory.")
    if quantization in ("int8", "int4"):
        if dtype == "float32":
            raise UnsupportedModelError(
                f"--dtype float32 computes with dequantised weights, which --quantization {quantization} contradicts: "
                "leave one of the two out."
            )
        weights = quantization.upper()
    elif dtype == "auto" and quantization == "auto" and stored not in FLOAT_KINDS:
        weights = ""
    else:
        weights = "F32" if dtype == "float32" else "BF16"
    return Precision(weights, _cache_type(kv_cache_dtype, weights))


def _cache_type(kv_cache_dtype: str, weights: str) -> str:
    if kv_cache_dtype == "auto":
        return {"F32": "f32", "BF16": "bf16"}.get(weights, "int8")
    if kv_cache_dtype not in _CACHE_TYPES:
        raise UnsupportedModelError(
            f"--kv-cache-dtype {kv_cache_dtype} is not served on a CPU: use {', '.join(_CACHE_TYPES)} or auto."
        )
    return _CACHE_TYPES[kv_cache_dtype]
