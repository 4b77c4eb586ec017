"""Rotary scaling schemes: from Hugging Face's rope parameters to a `RopeSpec`, and how long a context they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from octavo_engine.model.rope import inverse_frequencies
from octavo_engine.model.spec import RopeSpec, RopeStretch, UnsupportedModelError

BETA_FAST: Final = 32.0
BETA_SLOW: Final = 1.0

Parameters = Mapping[str, Any]


def rope_from_config(parameters: Parameters, dim: int, max_position: int) -> RopeSpec:
    """Build the spec from Hugging Face's rope parameters (`rope_type`, `rope_theta`, and the scheme's own).

    max_position: the configuration's `max_position_embeddings`. Raises UnsupportedModelError with a sentence.
    """
    kind = scaling_kind(parameters)
    if float(parameters.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("Rotary positions of a part of each head are not served; use another model.")
    if kind not in _SCHEMES:
        raise UnsupportedModelError(
            f"Rotary scaling '{kind}' is not served yet; use a model with one of {', '.join(_SCHEMES)}."
        )
    try:
        return _SCHEMES[kind](parameters, float(parameters.get("rope_theta", 10000.0)), dim, max_position)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"config.json's rotary scaling '{kind}' lacks a number or misstates it ({error}); compare it with the "
            "model's card, or download the model again."
        ) from error


def scaling_kind(parameters: Parameters) -> str:
    """Return the scheme's name; older configurations call the key `type`."""
    return str(parameters.get("rope_type", parameters.get("type", "default")))


def scaled_length(parameters: Parameters, max_position: int) -> int:
    """Return the longest context in tokens that a scheme makes of `max_position_embeddings`.

    Llama 3's configurations state the longer one already. YaRN's factor counts from the length of the first training.
    """
    kind = scaling_kind(parameters)
    if kind in ("linear", "dynamic"):
        return int(max_position * float(parameters["factor"]))
    if kind == "yarn":
        trained = _trained(parameters, max_position)
        return int(trained * _yarn_factor(parameters, trained, max_position))
    return max_position


def yarn(
    theta: float,
    dim: int,
    factor: float,
    trained: float,
    *,
    magnitude: float,
    beta_fast: float = BETA_FAST,
    beta_slow: float = BETA_SLOW,
    whole: bool = True,
) -> RopeSpec:
    """YaRN (Peng et al. 2023, section 3.2): what turns often keeps its frequency, what turns less than once is slowed.

    trained: the context in tokens of the first training. beta_fast, beta_slow: turns within it where the ramp begins
    and ends. whole: the ramp begins and ends at whole dimensions.
    """
    low, high = (_turning_dim(theta, dim, turns, trained) for turns in (beta_fast, beta_slow))
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dim - 1.0)
    width = high - low or 0.001
    slowed = [min(max((index - low) / width, 0.0), 1.0) for index in range(dim // 2)]
    return RopeSpec(dim, theta, tuple(1.0 / (share / factor + 1.0 - share) for share in slowed), magnitude)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's recommended factor of cosine and sine (section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _turning_dim(theta: float, dim: int, turns: float, trained: float) -> float:
    """Return which dimension turns so often within the context of the first training."""
    return dim * math.log(trained / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))


def _default(parameters: Parameters, theta: float, dim: int, max_position: int) -> RopeSpec:
    return RopeSpec(dim, theta)


def _linear(parameters: Parameters, theta: float, dim: int, max_position: int) -> RopeSpec:
    return RopeSpec(dim, theta, (float(parameters["factor"]),) * (dim // 2))


def _dynamic(parameters: Parameters, theta: float, dim: int, max_position: int) -> RopeSpec:
    return RopeSpec(dim, theta, stretch=RopeStretch(float(parameters["factor"]), max_position))


def _yarn(parameters: Parameters, theta: float, dim: int, max_position: int) -> RopeSpec:
    trained = _trained(parameters, max_position)
    factor = _yarn_factor(parameters, trained, max_position)
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        above, below = (float(parameters.get(name) or 0.0) for name in ("mscale", "mscale_all_dim"))
        both = above and below
        magnitude = yarn_magnitude(factor, above) / yarn_magnitude(factor, below) if both else yarn_magnitude(factor)
    return yarn(
        theta,
        dim,
        factor,
        trained,
        magnitude=float(magnitude),
        beta_fast=float(parameters.get("beta_fast") or BETA_FAST),
        beta_slow=float(parameters.get("beta_slow") or BETA_SLOW),
        whole=bool(parameters.get("truncate", True)),
    )


def _trained(parameters: Parameters, max_position: int) -> int:
    return int(parameters.get("original_max_position_embeddings") or max_position)


def _yarn_factor(parameters: Parameters, trained: int, max_position: int) -> float:
    return float(parameters.get("factor") or max_position / trained)


def _llama3(parameters: Parameters, theta: float, dim: int, max_position: int) -> RopeSpec:
    """Llama 3.1's scaling: short wavelengths stay, long ones are divided by `factor`, with a ramp between."""
    factor, low, high = (float(parameters[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = float(parameters["original_max_position_embeddings"])
    divisors = []
    for frequency in inverse_frequencies(RopeSpec(dim, theta)).tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < trained / high:
            divisors.append(1.0)
        elif wavelength > trained / low:
            divisors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return RopeSpec(dim, theta, tuple(divisors))


_SCHEMES: Final[dict[str, Callable[[Parameters, float, int, int], RopeSpec]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
