"""One choice's text, told apart into content and calls, and what its end is called then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from octavo_engine.server.tool_calls.events import Event, Text
from octavo_engine.server.tool_calls.formats import SCANNERS, ToolUse
from octavo_engine.server.tool_calls.scanner import Ending


class Told(NamedTuple):
    """What a piece of text brought: content; all of it in order, if it is more than content; the reason of an end."""

    text: str
    events: Sequence[Event]
    finish: str | None


class ChoiceCalls:
    """Reads one choice's text in the request's format."""

    def __init__(self, use: ToolUse, hidden: Collection[str]) -> None:
        """Begin an empty text. hidden: the format's tags that are special tokens of the model."""
        self._scanner = SCANNERS[use.format](use.names, use.parallel, hidden)

    def take(self, text: str, finish: str | None, stopped_by_text: bool) -> Told:
        """Take the next piece, the last one with a `finish`."""
        events = self._scanner.push(text)
        if finish is not None:
            ending: Ending = "stop_string" if stopped_by_text else "end" if finish == "stop" else "length"
            events += self._scanner.finish(ending)
            if finish == "stop" and self._scanner.whole:
                finish = "tool_calls"
        texts = [event.text for event in events if isinstance(event, Text)]
        return Told("".join(texts), events if len(texts) < len(events) else (), finish)
