"""How log-probabilities are told: one record for each token."""

from __future__ import annotations

from typing import Any

import numpy as np


def record_type(alternatives: int) -> np.dtype[Any]:
    """Return the layout of one token's record, which `ipc/scores.py` reads."""
    top = np.dtype([("id", "<i4"), ("logprob", "<f4")])
    return np.dtype([("logprob", "<f4"), ("rank", "<i4"), ("top", top, (alternatives,))])
