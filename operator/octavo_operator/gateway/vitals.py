"""Whether an endpoint can be trusted: is there fresh news of it, does its work belie the news, does it fail.

Absence is never idleness (faults.md, K12 and B58): an endpoint without news is the last choice, not the first. And the
endpoint that fails at once looks idle for ever: it is put out, longer each time, and let back in one request at a time.
"""

from __future__ import annotations

from typing import Final

from .types import Outcome, Sample, Standing

STALE_SECONDS: Final = 10.0
"""A sample older than this is no news. Scrapes come every second: ten in a row were lost."""
FROZEN_SECONDS: Final = 10.0
"""An engine ticks at least once a second, idle or not: one whose tick stands still so long is stuck."""
UNANSWERED_SECONDS: Final = 2.0
"""An endpoint that says it has nothing to do, with a request of ours unanswered for so long, does not see it."""
FAILURES: Final = 3
"""Failures in a row that put an endpoint out: fewer would punish one poisoned request."""
EJECTION_SECONDS: Final = 2.0
"""The first ejection; each one after it without a success between is twice as long."""
LONGEST_EJECTION_SECONDS: Final = 300.0


class Vitals:
    """The signs of one endpoint. Times are the picker's seconds."""

    def __init__(self) -> None:
        """Start without news: silent until the first sample."""
        self.sample: Sample | None = None
        self._tick_moved_at = 0.0
        self._belied = False
        self._failures = 0
        self._ejections = 0
        self._out_until = 0.0
        self._full_until = 0.0
        self._on_trial = False

    def sampled(self, sample: Sample, oldest_unanswered: float | None) -> None:
        """Take in a scrape; one that is older than the last is dropped.

        `oldest_unanswered` is when the request of ours that waits longest for an answer was picked.
        """
        last = self.sample
        if last is not None and sample.at <= last.at:
            return
        if last is None or sample.tick != last.tick:
            self._tick_moved_at = sample.at
        idle = not sample.running and not sample.waiting
        self._belied = idle and oldest_unanswered is not None and sample.at - oldest_unanswered > UNANSWERED_SECONDS
        self.sample = sample

    def ended(self, outcome: Outcome, now: float, retry_after: float = 1.0) -> None:
        """Learn how a request ended."""
        if outcome is Outcome.DONE:
            self._failures = self._ejections = 0
            self._on_trial = False
        elif outcome is Outcome.NOT_STARTED:
            self._full_until = now + retry_after
        elif outcome is Outcome.FAILED:
            self._failures += 1
            if self._on_trial or self._failures >= FAILURES:
                self._eject(now)

    def standing(self, now: float, in_flight: int) -> Standing:
        """Return how far to trust it; `in_flight` is how many requests of ours it has."""
        if now < self._out_until:
            return Standing.EJECTED
        if not self._alive(now):
            return Standing.SILENT
        if self._on_trial and in_flight:
            return Standing.PROBED
        if now < self._full_until:
            return Standing.FULL
        return Standing.GOOD

    def _alive(self, now: float) -> bool:
        sample = self.sample
        return (
            sample is not None
            and now - sample.at <= STALE_SECONDS
            and sample.at - self._tick_moved_at <= FROZEN_SECONDS
            and not self._belied
        )

    def _eject(self, now: float) -> None:
        self._out_until = now + min(EJECTION_SECONDS * 2**self._ejections, LONGEST_EJECTION_SECONDS)
        self._ejections = min(self._ejections + 1, 16)
        self._failures = 0
        self._on_trial = True
