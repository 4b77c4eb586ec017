"""What a simulated engine has counted since its start: the counters and histograms of its `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from octavo_engine import contract

from .policy import Buckets


class Tally:
    """Counters that only rise."""

    __slots__ = (
        "_itl", "_ttft", "ended", "generated", "hit_tokens", "miss_tokens", "preemptions", "prompt_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self.miss_tokens = 0
        self.generated = 0
        self.ended = 0
        self.preemptions = 0
        self._ttft = [0] * (len(contract.TIME_TO_FIRST_TOKEN.buckets) + 1)
        self._itl = [0] * (len(contract.INTER_TOKEN.buckets) + 1)

    def admitted(self, prompt: int, cached: int) -> None:
        """Count an admission: once for a sequence, however often it is preempted."""
        self.prompt_tokens += prompt
        self.hit_tokens += cached
        self.miss_tokens += prompt - cached

    def started(self, seconds: float) -> None:
        """Count a first token after `seconds` in this engine."""
        self._ttft[bisect_left(contract.TIME_TO_FIRST_TOKEN.buckets, seconds)] += 1

    def decoded(self, tokens: int, seconds: float) -> None:
        """Count `tokens` tokens that came `seconds` after the one before each."""
        self.generated += tokens
        self._itl[bisect_left(contract.INTER_TOKEN.buckets, seconds)] += tokens

    def ttft(self) -> Buckets:
        """Return the histogram of the times to the first token."""
        return Buckets(contract.TIME_TO_FIRST_TOKEN.buckets, tuple(accumulate(self._ttft)))

    def itl(self) -> Buckets:
        """Return the histogram of the times between tokens."""
        return Buckets(contract.INTER_TOKEN.buckets, tuple(accumulate(self._itl)))
