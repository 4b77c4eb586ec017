"""The cos/sin tables of rotary positions, from a `RopeSpec`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.spec import RopeSpec


def inverse_frequencies(spec: RopeSpec) -> NDArray[np.float32]:
    """Return float32 [dim / 2], radians per position."""
    exponents = np.arange(0, spec.dim, 2, dtype=np.float64) / spec.dim
    frequencies: NDArray[np.float32] = (1.0 / np.power(spec.theta, exponents)).astype(np.float32)
    if spec.inverse_frequency_divisors:
        frequencies /= np.asarray(spec.inverse_frequency_divisors, dtype=np.float32)
    return frequencies


def rope_table(spec: RopeSpec, num_positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (cos, sin), each float32 [num_positions, dim / 2], for contexts of up to so many tokens.

    The angle is a float32 product, as every float32 implementation has it: at position 8000 its rounding is larger
    than that of the cosine, so rounding it otherwise would drift away from the model's training.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = np.outer(positions, inverse_frequencies(_stretched(spec, num_positions))).astype(np.float64)
    cos, sin = np.cos(angles) * spec.magnitude, np.sin(angles) * spec.magnitude
    return cos.astype(np.float32), sin.astype(np.float32)


def _stretched(spec: RopeSpec, length: int) -> RopeSpec:
    """Fix dynamic scaling for the longest context that will be asked for.

    Scaling anew as a text grows, as the scheme was first meant, would leave its cached keys turned by the factors of
    another length, and make a text depend on how it was cut into steps.
    """
    stretch = spec.stretch
    if stretch is None or length <= stretch.trained:
        return spec
    grown = stretch.factor * length / stretch.trained - (stretch.factor - 1.0)
    return replace(spec, theta=spec.theta * grown ** (spec.dim / (spec.dim - 2)))
