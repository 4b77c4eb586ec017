"""Log-probabilities under the model's own distribution: the logits as they come, before temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.records import record_type
from octavo_engine.sampling.sampler import RowSampling, Sampled, own_pool
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


def token_records(
    logits: NDArray[np.float32], token_ids: NDArray[np.int32], alternatives: int, pool: Pool | None = None
) -> NDArray[Any]:
    """Return a record [L] for each row's token: its log-probability, its rank and the most probable tokens.

    The rank of a token is 1 and the number of those with a larger logit.
    """
    records = np.zeros(len(logits), dtype=record_type(alternatives))
    records["logprob"] = logprobs(logits, token_ids, pool)
    records["rank"] = 1 + (logits > logits[np.arange(len(logits)), token_ids][:, None]).sum(axis=1)
    if alternatives:
        ids, values = top_logprobs(logits, alternatives, pool)
        records["top"]["id"], records["top"]["logprob"] = ids, values
    return records


def sampled_records(
    logits: NDArray[np.float32], rows: Sequence[RowSampling], sampled: Sequence[Sampled], pool: Pool | None = None
) -> list[bytes]:
    """Return, for each row that was sampled from `logits`, the records of its tokens; empty where none are wanted.

    Arguments as `sample` takes and returns them.
    """
    results = [b""] * len(rows)
    if all(row.settings.logprobs < 0 for row in rows):
        return results
    firsts = accumulate((1 + len(row.drafts) for row in rows), initial=0)
    # Rows that want as many alternatives are worked out together.
    groups: dict[int, list[tuple[int, int]]] = {}
    for index, (row, first) in enumerate(zip(rows, firsts, strict=False)):
        if row.settings.logprobs >= 0 and sampled[index].tokens:
            groups.setdefault(row.settings.logprobs, []).append((index, first))
    for alternatives, members in groups.items():
        places = [first + i for index, first in members for i in range(len(sampled[index].tokens))]
        own = logits if len(places) == len(logits) else logits[places]
        tokens = np.array([token for index, _ in members for token in sampled[index].tokens], dtype=np.int32)
        records, start = token_records(own, tokens, alternatives, pool), 0
        for index, _ in members:
            end = start + len(sampled[index].tokens)
            results[index] = records[start:end].tobytes()
            start = end
    return results
