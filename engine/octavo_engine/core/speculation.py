"""Drafts: guesses at a sequence's next tokens, made where they are worth more than they cost.

A draft never changes a token, only how many a step gives; so the one question is whether it pays. Worth: an accepted
token saves its sequence a token's share of a step. Cost: what the step takes longer. How often guesses come true is
known without trying, because every guess is compared with what was written, whether it was a draft or not. What rows
cost is measured (`StepCosts`); to measure it, a few drafts are made now and then, ever more rarely, whatever they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from octavo_engine.core.ngram import MAX_MATCH, NgramIndex
from octavo_engine.core.step_costs import StepCosts

_MARGIN: Final = 1.1
"""Worth must exceed cost by this factor: both are estimates, and guessing itself takes time."""
_LIKELY: Final = 0.95
"""If guesses that come true so often would not pay, none is looked for."""
_PRIOR: Final = 4.0
"""Guesses of all sequences that weigh as much in a sequence's rate as that many of its own."""
_FADE: Final = 0.98
"""What older guesses weigh beside the next one."""
_TRIAL_TOKENS: Final = 8
_FIRST_TRIAL, _LAST_TRIAL = 8, 2048
"""Steps between two trials: doubled from the first to the last."""


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

    def measured(self, tokens: int, drafted: int, seconds: float) -> None:
        """Learn that a step of `tokens`, of which `drafted` were drafts, took `seconds`.

        0 seconds say nothing: prompts were computed in the same step.
        """
        ...

    def forget(self, sequence: int) -> None:
        """`sequence` has ended."""
        ...


class _Rates:
    """How often guesses came true, by the number of tokens before them that agreed."""

    __slots__ = ("_hits", "_tries")

    def __init__(self) -> None:
        self._hits = [0.0] * (MAX_MATCH + 1)
        self._tries = [0.0] * (MAX_MATCH + 1)

    def count(self, length: int, came_true: bool) -> None:
        self._hits[length] = self._hits[length] * _FADE + came_true
        self._tries[length] = self._tries[length] * _FADE + 1

    def rate(self, length: int, prior: float) -> float:
        return (self._hits[length] + _PRIOR * prior) / (self._tries[length] + _PRIOR)


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
        self._until_trial = self._trial_interval = _FIRST_TRIAL
        self._on_trial = False
        self.costs = StepCosts()

    def worthwhile(self, running: int) -> bool:
        """See `DraftSource`. A longer step's tokens cost no less, so what does not pay alone pays nowhere."""
        if not running or self.costs.line(running) is None:
            return False
        pays = self._worth(running) * _LIKELY > self.costs.slope(running + 1)
        self._until_trial -= not pays
        # A trial lasts until a step with drafts has ended: with two plans in flight a sequence must wait for its turn.
        self._on_trial = not pays and self._until_trial <= 0
        return pays or self._on_trial

    def propose(self, sequence: int, tokens: Sequence[int], room: int, planned: int, running: int) -> Sequence[int]:
        """See `DraftSource`."""
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
        room = min(room, self._max_drafts)
        count = self._trial(room, planned, running) if self._on_trial else self._count(text, room, planned, running)
        distance = len(tokens) - match.source
        return tuple(tokens[match.source + place % distance] for place in range(count))

    def measured(self, tokens: int, drafted: int, seconds: float) -> None:
        """See `DraftSource`."""
        if seconds:
            self.costs.observe(tokens, seconds)
        if drafted and self._on_trial:
            self._trial_interval = min(2 * self._trial_interval, _LAST_TRIAL)
            self._until_trial, self._on_trial = self._trial_interval, False

    def forget(self, sequence: int) -> None:
        """See `DraftSource`."""
        self._texts.pop(sequence, None)

    def _worth(self, running: int) -> float:
        """Return the seconds that a token more saves: its share of a step."""
        return self.costs.seconds(running) / running / _MARGIN

    def _settle(self, text: _Text, tokens: Sequence[int]) -> None:
        """Compare the open guess with what was written."""
        known, source = text.known, text.source
        distance, length = known - source, text.length
        for place in range(min(len(tokens) - known, self._max_drafts)):
            came_true = tokens[known + place] == tokens[source + place % distance]
            text.rates.count(length, came_true)
            self._rates.count(length, came_true)
            if not came_true:
                return
            length = min(length + 1, MAX_MATCH)

    def _count(self, text: _Text, room: int, planned: int, running: int) -> int:
        """Return how many drafts gain the most: the worth of the tokens expected, less the longer step."""
        worth = self._worth(running)
        best, gain, most, chance, length = 0, 0.0, 0.0, 1.0, text.length
        for count in range(1, room + 1):
            chance *= text.rates.rate(length, self._rates.rate(length, 0.5))
            length = min(length + 1, MAX_MATCH)
            gain += worth * chance - self.costs.slope(planned + count)
            if gain > most:
                best, most = count, gain
        return best

    def _trial(self, room: int, planned: int, running: int) -> int:
        """Return drafts to learn the cost of: a quarter more tokens in this step, _TRIAL_TOKENS at the least."""
        return min(room, max(0, max(_TRIAL_TOKENS, running // 4) - max(0, planned - running)))
