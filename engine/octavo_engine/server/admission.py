"""Whether one more request may wait: decided before anything is tokenised or sent, and again with its size known."""

from __future__ import annotations

from octavo_engine.server.engine_client import Load
from octavo_engine.server.errors import ApiError, invalid, queue_full


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


def refuse_for_ever(prompts: int, n: int, tokens: int, max_requests: int, max_tokens: int) -> ApiError | None:
    """Return the 400 of a request that an empty queue would not take either: to retry it would be in vain.

    `prompts` times `n` sequences with `tokens` prompt tokens in all; 0 means no bound. The engine takes prompts one by
    one, each as a whole: a single one is never too long for the queue, several together can be.
    """
    if max_requests and prompts * n > max_requests:
        return invalid(
            f"This request asks for {prompts * n} sequences ({prompts} prompts, n {n}) and can never be admitted: "
            f"{max_requests} may wait at the most (--max-queue-requests). Send it in parts.",
            param="prompt" if prompts > max_requests or n == 1 else "n",
            code="invalid_value",
        )
    if max_tokens and prompts > 1 and tokens > max_tokens:
        return invalid(
            f"The prompts of this request have {tokens} tokens in all (n {n}) and can never be admitted: {max_tokens} "
            "may wait at the most (--max-queue-tokens). Send it in parts.",
            param="prompt",
            code="invalid_value",
        )
    return None
