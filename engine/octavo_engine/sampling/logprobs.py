"""Log-probabilities under the model's own distribution: the logits as they come, before temperature and filters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.sampler import own_pool
from octavo_kernels.cpu import _native
from octavo_kernels.cpu._native import Pool


def logprobs(
    logits: NDArray[np.float32], token_ids: NDArray[np.int32], pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return log_softmax(logits)[token] for logits [L, V] and token_ids [L]; NaN where a row is not finite.

    The sum has a fixed order, so a row's result does not depend on the others. Raises ValueError for a token outside
    the vocabulary.
    """
    out = np.empty(len(logits), dtype=np.float32)
    _native.logprobs(pool or own_pool(), logits, token_ids, out)
    return out


def top_logprobs(
    logits: NDArray[np.float32], count: int, pool: Pool | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the `count` most probable tokens of each row, [L, count], and their log-probabilities.

    The most probable first, of equal ones the lowest id. Raises ValueError if there are not so many tokens.
    """
    ids = np.empty((len(logits), count), dtype=np.int32)
    out = np.empty((len(logits), count), dtype=np.float32)
    _native.top_logprobs(pool or own_pool(), logits, ids, out)
    return ids, out
