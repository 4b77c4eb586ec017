"""What `--dtype`, `--quantization` and `--kv-cache-dtype` mean on a GPU.

dtype     quantization   stored in floats      stored quantised (GGUF)
auto      auto           bfloat16              as stored where a kernel has its kind (Q8_0, Q4_0, Q4_1), else bfloat16
any       none           that dtype            dequantised to it
any       int8, int4     quantised at load     dequantised, quantised again
any       fp8            quantised at load     dequantised, quantised again; not on sm_80, which has no such products

The dtype is that of activations, and products are summed in float32 whatever it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from octavo_engine.model.qtensor import FLOAT_KINDS
from octavo_engine.model.spec import UnsupportedModelError

GROUP: Final = 32
"""Input features that share a scale: int8 and int4 rows are whole groups."""
AS_STORED: Final = frozenset({"Q8_0", "Q4_0", "Q4_1"})
"""GGUF kinds that the kernels compute as they are stored."""
_CACHE_TYPES: Final = ("bfloat16", "float16", "float32", "fp8")


class GpuPrecision(NamedTuple):
    """How a model is held. dtype: of activations. weights: dense, int8, int4, fp8, or "" for as stored. cache: a key of
    `cache.CACHE_TYPES`.
    """

    dtype: str
    weights: str
    cache: str

    def kind(self, stored: str, columns: int, *, delicate: bool = False) -> str:
        """Return what a matrix stored as `stored` becomes: dense, int8, int4, fp8, or "" for as stored.

        The output head and the embedding are `delicate`: they are never quantised further than they are stored.
        """
        if self.weights == "":
            return "" if stored in AS_STORED and not delicate else "dense"
        if self.weights in ("int8", "int4") and columns % GROUP:
            return "dense"
        return "dense" if delicate else self.weights


def choose_gpu_precision(
    dtype: str, quantization: str, kv_cache_dtype: str, stored: str, fp8_refusal: str = ""
) -> GpuPrecision:
    """Return the precision for the command line's choices and the kind most weights are `stored` in.

    fp8_refusal: why the device has no fp8, empty if it has. Raises UnsupportedModelError with a sentence for what it
    does not serve.
    """
    kind = "bfloat16" if dtype == "auto" else dtype
    if quantization == "fp8" and fp8_refusal:
        raise UnsupportedModelError(f"--quantization fp8 is not served here: {fp8_refusal}")
    if kv_cache_dtype == "fp8" and fp8_refusal:
        raise UnsupportedModelError(f"--kv-cache-dtype fp8 is not served here: {fp8_refusal}")
    if kv_cache_dtype not in ("auto", *_CACHE_TYPES):
        raise UnsupportedModelError(
            f"--kv-cache-dtype {kv_cache_dtype} is not served on a GPU: use {', '.join(_CACHE_TYPES)} or auto."
        )
    if kind == "float32" and kv_cache_dtype not in ("auto", "float32"):
        raise UnsupportedModelError(
            f"--dtype float32 is the exact mode, which --kv-cache-dtype {kv_cache_dtype} contradicts: leave one of the "
            "two out."
        )
    if quantization == "auto":
        weights = "" if stored not in FLOAT_KINDS and dtype != "float32" else "dense"
    else:
        weights = "dense" if quantization == "none" else quantization
    return GpuPrecision(kind, weights, kind if kv_cache_dtype == "auto" else kv_cache_dtype)
