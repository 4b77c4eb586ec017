"""Whether one more request may wait: decided before anything is tokenised or sent, and again with its size known."""

from __future__ import annotations

from octavo_engine.server.engine_client import Load
from octavo_engine.server.errors import ApiError, queue_full


def refuse(load: Load, sequences: int, tokens: int, max_requests: int, max_tokens: int) -> ApiError | None:
    """Return the 429 for a request of `sequences` and `tokens` prompt tokens on top of `load`; 0 means no bound.

    The same rule as the engine's own, applied to its last snapshot and all it has not seen yet: the bound on tokens
    never refuses the first of an empty queue, or a long prompt would be refused for ever.
    """
    if max_requests and load.sequences + sequences > max_requests:
        return queue_full(f"{load.sequences} sequences are waiting already, of {max_requests} that may. Retry later.")
    if max_tokens and load.tokens and load.tokens + tokens > max_tokens:
        return queue_full(f"{load.tokens} prompt tokens are waiting already, of {max_tokens} that may. Retry later.")
    return None
