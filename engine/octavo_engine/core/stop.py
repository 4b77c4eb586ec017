"""When a sequence ends by its tokens: EOS, stop ids, lengths. Stop strings are the API process's business."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple


class StopRule(NamedTuple):
    """A request's own rule. EOS and stop ids count only from the `min_tokens`-th generated token on."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Stop(NamedTuple):
    """Why it ended. `token` is the stop id that ended it, -1 for EOS and lengths."""

    reason: Literal["stop", "length"]
    token: int = -1


def check_stop(
    rule: StopRule, eos_token_ids: Collection[int], token: int, num_generated: int, num_tokens: int, max_model_len: int
) -> Stop | None:
    """Say whether `token` ends its sequence, given the counts with `token` included.

    An EOS on the last permitted token is a stop, not a length: the model had finished.
    """
    if num_generated >= rule.min_tokens:
        if not rule.ignore_eos and token in eos_token_ids:
            return Stop("stop")
        if token in rule.stop_token_ids:
            return Stop("stop", token)
    if num_generated >= rule.max_tokens or num_tokens >= max_model_len:
        return Stop("length")
    return None
