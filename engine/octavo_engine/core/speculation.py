"""Drafts: guesses at a sequence's next tokens, made where they are worth more than they cost.

A draft never changes a token, only how many a step gives; so the one question is whether it pays. Worth: an accepted
token saves its sequence a token's share of a step. Cost: what the step takes longer. How often guesses come true is
known without trying, because every guess is compared with what was written, whether it was a draft or not; what rows
cost is measured (`StepCosts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from octavo_engine.core.ngram import MAX_MATCH, MIN_MATCH, NgramIndex
from octavo_engine.core.step_costs import StepCosts

_MARGIN: Final = 1.1
"""Worth must exceed cost by this factor: both are estimates, and guessing itself takes time."""
_LIKELY: Final = 0.95
"""If guesses that come true so often would not pay, none is looked for."""
_PRIOR: Final = 4.0
"""Guesses of all sequences that weigh as much in a sequence's rate as that many of its own."""
_FADE: Final = 0.98
"""What older guesses weigh beside the next one."""


class DraftSource(Protocol):
    """Guesses what follows. A wrong guess costs time, no output."""

    def worthwhile(self, running: int) -> bool:
        """Say whether to ask for guesses at all in a step that `running` sequences share."""
        ...

    def propose(self, sequence: int, tokens: Sequence[int], room: int, planned: int, running: int) -> Sequence[int]:
        """Return at most `room` tokens to follow `tokens`, all known ones of `sequence`; none is a fine answer.

        `planned`: tokens the step has without them. `running`: sequences that share the step.
        """
        ...

    def measured(self, tokens: int, seconds: float) -> None:
        """Learn that a step of `tokens` in which every sequence decoded took `seconds`."""
        ...

    def forget(self, sequence: int) -> None:
        """`sequence` has ended."""
        ...


class _Rates:
    """How often guesses came true, by the length of the match they were made from."""

    __slots__ = ("_hits", "_tries")

    def __init__(self) -> None:
        self._hits = [0.0] * (MAX_MATCH - MIN_MATCH + 1)
        self._tries = [0.0] * (MAX_MATCH - MIN_MATCH + 1)

    def count(self, length: int, hits: int, tries: int) -> None:
        place = length - MIN_MATCH
        self._hits[place] = self._hits[place] * _FADE + hits
        self._tries[place] = self._tries[place] * _FADE + tries

    def rate(self, length: int, prior: float) -> float:
        place = length - MIN_MATCH
        return (self._hits[place] + _PRIOR * prior) / (self._tries[place] + _PRIOR)


class _Text:
    """One sequence: its index, its rates, and the guess that is open: how long the text was, and what was found."""

    __slots__ = ("index", "known", "length", "rates", "source")

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.rates = _Rates()
        self.known = self.source = self.length = 0


class PromptLookup:
    """`DraftSource` that copies what followed the same tokens earlier in the same sequence."""

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._texts: dict[int, _Text] = {}
        self._rates = _Rates()
        self.costs = StepCosts()

    def worthwhile(self, running: int) -> bool:
        """See `DraftSource`. A longer step's tokens cost no less, so what does not pay alone pays nowhere."""
        return running > 0 and self._worth(running) * _LIKELY > self._price(running)

    def propose(self, sequence: int, tokens: Sequence[int], room: int, planned: int, running: int) -> Sequence[int]:
        """See `DraftSource`."""
        worth = self._worth(running)
        if worth * _LIKELY <= self._price(planned):
            return ()
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text()
        if text.length and len(tokens) > text.known:
            self._settle(text, tokens)
        match = text.index.find(tokens)
        if match is None:
            text.length = 0
            return ()
        text.known, (text.source, text.length) = len(tokens), match
        rate = text.rates.rate(match.length, self._rates.rate(match.length, 0.5))
        count = self._count(rate, worth, min(room, self._max_drafts), planned)
        distance = len(tokens) - match.source
        return tuple(tokens[match.source + place % distance] for place in range(count))

    def measured(self, tokens: int, seconds: float) -> None:
        """See `DraftSource`."""
        self.costs.observe(tokens, seconds)

    def forget(self, sequence: int) -> None:
        """See `DraftSource`."""
        self._texts.pop(sequence, None)

    def _worth(self, running: int) -> float:
        """Return the seconds that a token more saves: its share of a step."""
        return self.costs.seconds(running) / running / _MARGIN

    def _price(self, planned: int) -> float:
        """Return the seconds that a step of `planned` tokens takes longer with one more."""
        return self.costs.seconds(planned + 1) - self.costs.seconds(planned)

    def _settle(self, text: _Text, tokens: Sequence[int]) -> None:
        """Compare the open guess with what was written."""
        known, source = text.known, text.source
        distance, written = known - source, min(len(tokens) - known, self._max_drafts)
        hits = 0
        while hits < written and tokens[known + hits] == tokens[source + hits % distance]:
            hits += 1
        tries = min(hits + 1, written)
        text.rates.count(text.length, hits, tries)
        self._rates.count(text.length, hits, tries)

    def _count(self, rate: float, worth: float, room: int, planned: int) -> int:
        """Return how many drafts gain the most: worth of the tokens expected less the longer step."""
        without = self.costs.seconds(planned)
        best, gain, expected, chance = 0, 0.0, 0.0, 1.0
        for count in range(1, room + 1):
            chance *= rate
            expected += chance
            own = worth * expected - (self.costs.seconds(planned + count) - without)
            if own > gain:
                best, gain = count, own
        return best
