"""One choice's tokens on their way to text: detokenised, watched for stop strings, counted."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.server.errors import engine_failed
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
    ) -> None:
        """Begin an empty text after `prompt_ids`."""
        self._detokenizer = text_model.detokenizer(prompt_ids)
        self._stops = StopStrings(stop_strings, include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self.completion_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def stopped_by_text(self) -> bool:
        """Whether a stop string ended it: the engine does not know."""
        return self._stops.matched is not None

    def take(self, output: Output) -> str:
        """Return the text that may be sent now. Raises ApiError if the engine failed this choice."""
        tokens = output.tokens
        if not output.finish and not self._stops.watches:
            self.completion_tokens += len(tokens)
            return self._detokenizer.push(tokens)
        # A stop token asked for by id is no text, unless the caller wants to see what stopped it.
        silent = len(tokens) - 1 if output.stop_reason >= 0 and not self._include_stop else len(tokens)
        pieces = []
        for index, token in enumerate(tokens):
            self.completion_tokens += 1
            if index < silent:
                pieces.append(self._watch(self._detokenizer.push((token,))))
                if self._stopped():
                    return "".join(pieces)
        if output.finish in ("error", "abort"):
            raise engine_failed(output.detail or "The engine ended the request.")
        if output.finish:
            pieces.append(self._watch(self._detokenizer.finish()))
            if not self._stopped():
                pieces.append(self._stops.finish())
                self.finish_reason = output.finish
                self.stop_reason = output.stop_reason if output.stop_reason >= 0 else None
        return "".join(pieces)

    def _watch(self, text: str) -> str:
        """Pass text through the stop strings, which count after `min_tokens` tokens only."""
        return self._stops.push(text) if self.completion_tokens >= self._min_tokens else text

    def _stopped(self) -> bool:
        if self._stops.matched is None:
            return False
        self.finish_reason, self.stop_reason = "stop", self._stops.matched
        return True
