"""Rotary factors: static scaling schemes as divisors of the inverse frequencies, and the cos/sin tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.spec import RopeSpec, UnsupportedModelError


def inverse_frequencies(spec: RopeSpec) -> NDArray[np.float32]:
    """Return float32 [dim / 2], radians per position."""
    exponents = np.arange(0, spec.dim, 2, dtype=np.float64) / spec.dim
    frequencies: NDArray[np.float32] = (1.0 / np.power(spec.theta, exponents)).astype(np.float32)
    if spec.inverse_frequency_divisors:
        frequencies /= np.asarray(spec.inverse_frequency_divisors, dtype=np.float32)
    return frequencies


def rope_table(spec: RopeSpec, num_positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (cos, sin), each float32 [num_positions, dim / 2].

    The angle is a float32 product, as every float32 implementation has it: at position 8000 its rounding is larger
    than that of the cosine, so rounding it otherwise would drift away from the model's training.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = np.outer(positions, inverse_frequencies(spec)).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope_from_config(parameters: Mapping[str, Any], dim: int) -> RopeSpec:
    """Build the spec from Hugging Face's rope parameters (`rope_type`, `rope_theta`, and the scheme's own)."""
    theta = float(parameters.get("rope_theta", 10000.0))
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind == "default":
        return RopeSpec(dim, theta)
    if kind == "linear":
        return RopeSpec(dim, theta, (float(parameters["factor"]),) * (dim // 2))
    if kind == "llama3":
        return RopeSpec(dim, theta, _llama3_divisors(parameters, theta, dim))
    raise UnsupportedModelError(
        f"Rotary scaling '{kind}' is not served yet; use a model with 'default', 'linear' or 'llama3' scaling."
    )


def _llama3_divisors(parameters: Mapping[str, Any], theta: float, dim: int) -> tuple[float, ...]:
    """Llama 3.1's scaling: short wavelengths stay, long ones are divided by `factor`, with a ramp between."""
    factor, low, high = (float(parameters[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = float(parameters["original_max_position_embeddings"])
    divisors = []
    for frequency in inverse_frequencies(RopeSpec(dim, theta)).astype(np.float64):
        wavelength = 2 * math.pi / frequency
        if wavelength < trained / high:
            divisors.append(1.0)
        elif wavelength > trained / low:
            divisors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return tuple(divisors)
