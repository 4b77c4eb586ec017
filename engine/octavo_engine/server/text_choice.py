"""One choice's tokens on their way to text: detokenised, watched for stop strings, counted, scored."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

from octavo_engine.ipc.scores import TokenScore, read_scores
from octavo_engine.server.errors import engine_failed, invalid
from octavo_engine.server.protocol.logprobs import Scored
from octavo_engine.server.scored_text import ScoredText
from octavo_engine.server.stop_strings import StopStrings
from octavo_engine.server.ticket import Output
from octavo_engine.server.tokenizer import TextModel


class TextChoice:
    """Token by token, so that text, reason and count are the same however the outputs were merged on their way.

    `completion_tokens` are the tokens generated up to the end, those of a stop string or a stop token included.
    """

    def __init__(
        self,
        text_model: TextModel,
        prompt_ids: Sequence[int],
        stop_strings: Sequence[str],
        include_stop: bool,
        min_tokens: int,
        alternatives: int = -1,
        shown: tuple[str, ...] = (),
        constrained_by: str = "",
    ) -> None:
        """Begin an empty text after `prompt_ids`. `alternatives`: of each token's score, -1 without scores.

        shown: special tokens that are part of the text. constrained_by: the field at fault if nothing can be said.
        """
        self._text_model = text_model
        self._detokenizer = text_model.detokenizer(prompt_ids, shown)
        self._stops = StopStrings(stop_strings, include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._alternatives = alternatives
        self._constrained_by = constrained_by
        self._places = ScoredText() if alternatives >= 0 else None
        self._scored: list[Scored] = []
        self.completion_tokens = 0
        self.logprob = 0.0
        """The sum over the tokens, if they are scored."""
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def stopped_by_text(self) -> bool:
        """Whether a stop string ended it: the engine does not know."""
        return self._stops.matched is not None

    @property
    def watches(self) -> bool:
        """Whether its tokens must be looked at one by one."""
        return self._places is not None or self._stops.watches

    def echo(self, prompt_ids: Sequence[int], scores: Sequence[TokenScore] = ()) -> str:
        """Begin with the prompt's own text, for which nobody watches; the choice has been made without `prompt_ids`.

        `scores`: of the tokens from the second on, as far as there are any: they need not be told, and a request that
        failed has none.
        """
        texts = [self._detokenizer.push((token,)) for token in prompt_ids]
        if self._text_model.strips_leading_space:
            first = next((place for place, text in enumerate(texts) if text), 0)
            texts[first] = texts[first].removeprefix(" ")
        if self._places is not None:
            known = chain((None,), scores, repeat(None))
            for token, score, text in zip(prompt_ids, known, texts, strict=False):
                self._places.add(token, score, text)
        return self._send("".join(texts))

    def take(self, output: Output) -> str:
        """Return the text that may be sent now. Raises ApiError if the engine failed this choice."""
        tokens = output.tokens
        if not output.finish and not self.watches:
            self.completion_tokens += len(tokens)
            return self._detokenizer.push(tokens)
        # A stop token asked for by id is no text, unless the caller wants to see what stopped it.
        silent = len(tokens) - 1 if output.stop_reason >= 0 and not self._include_stop else len(tokens)
        scores = read_scores(bytes(output.logprobs), self._alternatives) if self._places is not None else ()
        pieces = []
        for index, token in enumerate(tokens):
            text = self._detokenizer.push((token,)) if index < silent else ""
            self.completion_tokens += 1
            if self._places is not None:
                self._places.add(token, scores[index], text)
                self.logprob += scores[index].logprob
            pieces.append(self._watch(text))
            if self._stopped():
                return self._send("".join(pieces))
        if output.finish in ("error", "abort"):
            if output.unsatisfiable:
                raise invalid(output.detail, self._constrained_by or None, "unsatisfiable")
            raise engine_failed(output.detail or "The engine ended the request.")
        if output.finish:
            pieces += self._ending(output)
        text = self._send("".join(pieces))
        if self._places is not None and output.finish and not self.stopped_by_text:
            self._scored += self._places.rest()
        return text

    def take_scored(self) -> list[Scored]:
        """Return the tokens of the text that has been taken since this was last asked."""
        scored, self._scored = self._scored, []
        return scored

    def _ending(self, output: Output) -> list[str]:
        left = self._detokenizer.finish()
        if self._places is not None:
            self._places.flush(left)
        text = self._watch(left)
        if self._stopped():
            return [text]
        self.finish_reason = output.finish
        self.stop_reason = output.stop_reason if output.stop_reason >= 0 else None
        return [text, self._stops.finish()]

    def _send(self, text: str) -> str:
        if self._places is not None:
            self._scored += self._places.sent(text)
        return text

    def _watch(self, text: str) -> str:
        """Pass text through the stop strings, which count after `min_tokens` tokens only."""
        return self._stops.push(text) if self.completion_tokens >= self._min_tokens else text

    def _stopped(self) -> bool:
        if self._stops.matched is None:
            return False
        self.finish_reason, self.stop_reason = "stop", self._stops.matched
        return True
