"""Where sequences are in their grammars: what may come next, and when there is nothing more to say.

A grammar follows the tokens its sequence has, never those that are planned: the runner knows each token when the next
plan runs. Masks depend on these tokens alone, so a sequence gets the same ones whatever runs beside it, and after a
preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import RowResult
from octavo_engine.ipc.grammar_limits import one_sentence
from octavo_engine.sampling.sampler import RowSampling
from octavo_engine.worker.gpu.grammars import Masks

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

CANNOT_FOLLOW = "The grammar cannot be followed any further"


class Grammar:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        """Begin at the start; `matcher` is this sequence's own."""
        self.matcher = matcher
        self._tokens: list[int] = []
        self.complete = False
        """Whether nothing may follow."""

    @property
    def failure(self) -> str:
        """Why the grammar cannot be followed any further, empty while it can."""
        if not self.matcher.is_error():
            return ""
        return f"{CANNOT_FOLLOW}: {one_sentence(self.matcher.get_error())}."

    def resume(self, tokens: Sequence[int]) -> None:
        """Go to where `tokens`, all that the sequence has generated, lead: usually it is there already."""
        known = next(
            (i for i, (a, b) in enumerate(zip(self._tokens, tokens, strict=False)) if a != b),
            min(len(self._tokens), len(tokens)),
        )
        if known < len(self._tokens):
            self.matcher.rollback(len(self._tokens) - known)
            del self._tokens[known:]
            self.complete = self.matcher.is_stopped()
        self.accept(tokens[known:])

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by sampled tokens. Returns how many there are up to the grammar's end, or to where it fails."""
        for count, token in enumerate(tokens):
            if self.complete or not self.matcher.consume_token(token):
                return count
            self._tokens.append(token)
            self.complete = self.matcher.is_stopped()
        return len(tokens)


class GrammarMasks:
    """The masks of a step's rows, worked out side by side: in one call, or in two if some rows have drafts."""

    def __init__(self, vocab_size: int, threads: int) -> None:
        """`threads`: how many compute masks, from the first step that needs some."""
        self._words = -(-vocab_size // 32)
        self._threads = threads
        self._executor: LLExecutor | None = None

    def fill(
        self, asked: Sequence[RowSampling], grammars: Sequence[Grammar | None]
    ) -> tuple[list[RowSampling], NDArray[np.int32]]:
        """Return the rows with their masks, and the masks [M, ceil(V / 32)]: one for each draft and one more.

        Behind a draft that its grammar forbids the masks allow everything: nothing there can be accepted.
        """
        rows: list[RowSampling] = []
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        size = 0
        for row, grammar in zip(asked, grammars, strict=True):
            if grammar is None:
                rows.append(row)
                continue
            rows.append(row._replace(mask=size))
            if row.drafts:
                drafted.append((grammar.matcher, size, list(row.drafts)))
            else:
                plain.append((grammar.matcher, size))
            size += 1 + len(row.drafts)
        masks = np.full((size, self._words), -1, dtype=np.int32)
        where = (masks.ctypes.data, 4 * self._words, size)
        if plain:
            self._pool().unsafe_compute_mask_ptr(plain, *where)
        if drafted:
            self._pool().unsafe_compute_mask_ptr_with_draft_token(drafted, *where)
        return rows, masks

    def plain(self, grammars: Sequence[Grammar]) -> NDArray[np.int32]:
        """Return one mask for each grammar, [M, ceil(V / 32)]."""
        masks = np.full((len(grammars), self._words), -1, dtype=np.int32)
        if grammars:
            places = [(grammar.matcher, index) for index, grammar in enumerate(grammars)]
            self._pool().unsafe_compute_mask_ptr(places, masks.ctypes.data, 4 * self._words, len(grammars))
        return masks

    def _pool(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(num_threads=self._threads)
        return self._executor


class GrammarRows:
    """What the GPU runner asks of grammars (`gpu.grammars.Grammars`): rows without drafts, masks apart from them."""

    def __init__(self, vocab_size: int, threads: int) -> None:
        """`threads`: how many compute masks, from the first step that needs some."""
        self._masks = GrammarMasks(vocab_size, threads)

    def masks(self, grammars: Sequence[Grammar | None]) -> Masks:
        """Return which mask each row has, and the masks."""
        numbers = np.full(len(grammars), -1, dtype=np.int32)
        constrained = [index for index, grammar in enumerate(grammars) if grammar is not None]
        numbers[constrained] = np.arange(len(constrained))
        return Masks(numbers, self._masks.plain([grammar for grammar in grammars if grammar is not None]))

    def follow(self, grammars: Sequence[Grammar | None], results: Sequence[RowResult]) -> list[RowResult]:
        """Let the grammars follow what was sampled."""
        return follow(grammars, results)


def follow(grammars: Sequence[Grammar | None], results: Sequence[RowResult]) -> list[RowResult]:
    """Let the grammars follow what was sampled. What a grammar's end came before never happened."""
    return [
        result if grammar is None else _followed(grammar, result)
        for grammar, result in zip(grammars, results, strict=True)
    ]


def _followed(grammar: Grammar, result: RowResult) -> RowResult:
    if failure := grammar.failure:
        return RowResult((), failure)
    if not result.tokens:
        return result
    count = grammar.accept(result.tokens)
    if failure := grammar.failure:
        return RowResult((), failure)
    size = len(result.logprobs) // len(result.tokens)
    return result._replace(
        tokens=result.tokens[:count], logprobs=result.logprobs[: count * size], complete=grammar.complete
    )
