"""Log-probabilities of given tokens: what a prompt is worth to the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def token_logprobs(logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return log softmax(logits)[i, tokens[i]] for each row, float32 [N]; not finite if the row is not.

    logits: [N, V]. The sum is float64 over the row alone, so a row's result does not depend on its neighbours.
    """
    largest = logits.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", under="ignore"):
        total = np.exp(logits - largest).sum(axis=1, dtype=np.float64)
        picked = np.take_along_axis(logits, tokens[:, None].astype(np.int64), axis=1) - largest
        result = picked[:, 0] - np.log(total)
    scores: NDArray[np.float32] = result.astype(np.float32)
    return scores
