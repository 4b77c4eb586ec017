"""The output items of a response as they grow: messages and calls, in the order in which the model wrote them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import msgspec

from octavo_engine.server.tool_calls.events import Arguments, CallStarted, Event, Text

Ended = Literal["completed", "incomplete"]


class _Item(ABC):
    """One item, the `index`th. `status` is `in_progress` while it grows."""

    def __init__(self, kind: str, index: int) -> None:
        self.id = f"{kind}_{secrets.token_hex(12)}"
        self.index = index
        self.status = "in_progress"

    @abstractmethod
    def told(self) -> dict[str, Any]:
        """Return the item as it is now."""

    def begin(self) -> list[dict[str, Any]]:
        """Return the events of its beginning."""
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.told()}]

    def end(self, status: Ended) -> list[dict[str, Any]]:
        """End it and return the events of that."""
        self.status = status
        return [{"type": "response.output_item.done", "output_index": self.index, "item": self.told()}]

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.id, "output_index": self.index, **members}


class _Message(_Item):
    """A message of one part, which is text."""

    def __init__(self, index: int) -> None:
        super().__init__("msg", index)
        self._begun = False
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def told(self) -> dict[str, Any]:
        content = [self._part()] if self._begun else []
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def begin(self) -> list[dict[str, Any]]:
        added = super().begin()
        self._begun = True
        return [*added, self._event("response.content_part.added", content_index=0, part=self._part())]

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """Add text and return the event of that. logprobs: of its tokens."""
        self._pieces.append(text)
        self._logprobs += logprobs
        return self._event("response.output_text.delta", content_index=0, logprobs=logprobs, delta=text)

    def extend(self, text: str) -> bytes:
        """Add text without log-probabilities and return its event's JSON up to where the text stands."""
        self._pieces.append(text)
        return self._opening

    @cached_property
    def _opening(self) -> bytes:
        empty = self._event("response.output_text.delta", content_index=0, logprobs=[], delta="")
        return msgspec.json.encode(empty).removesuffix(b'""}')

    def end(self, status: Ended) -> list[dict[str, Any]]:
        part = self._part()
        return [
            self._event("response.output_text.done", content_index=0, text=part["text"], logprobs=self._logprobs),
            self._event("response.content_part.done", content_index=0, part=part),
            *super().end(status),
        ]

    def _part(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}


class _Call(_Item):
    """A call of a function."""

    def __init__(self, index: int, call: CallStarted) -> None:
        super().__init__("fc", index)
        self._started = call
        self._pieces: list[str] = []

    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._started.id,
            "name": self._started.name,
            "arguments": "".join(self._pieces),
        }

    def add(self, arguments: str) -> dict[str, Any]:
        """Add a piece of the arguments and return the event of that."""
        self._pieces.append(arguments)
        return self._event("response.function_call_arguments.delta", delta=arguments)

    def end(self, status: Ended) -> list[dict[str, Any]]:
        whole = {"name": self._started.name, "arguments": "".join(self._pieces)}
        return [self._event("response.function_call_arguments.done", **whole), *super().end(status)]


class Output:
    """All items. What is returned are a stream's events, not numbered yet."""

    def __init__(self) -> None:
        """Begin without any."""
        self._items: list[_Message | _Call] = []
        self._open: _Message | _Call | None = None

    def told(self) -> list[dict[str, Any]]:
        """Return the items as they are now."""
        return [item.told() for item in self._items]

    def add(self, pieces: Iterable[Event], logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add what has been written. logprobs: of its tokens, told where it is one text only."""
        events: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, Text):
                events += self._text(piece.text, logprobs)
            elif isinstance(piece, CallStarted):
                events += self._begin(_Call(len(self._items), piece))
            elif isinstance(self._open, _Call):
                events += [self._open.add(piece.text)] if isinstance(piece, Arguments) else self._end("completed")
        return events

    def extend(self, text: str) -> bytes | None:
        """Add text to the message that is open; return its event's JSON up to the text, None if no message is open."""
        return self._open.extend(text) if isinstance(self._open, _Message) else None

    def finish(self, status: Ended) -> list[dict[str, Any]]:
        """End the output: nothing at all is an empty message, and a call that has not ended stays incomplete."""
        events = [] if self._items else self._begin(_Message(0))
        return events + self._end("incomplete" if isinstance(self._open, _Call) else status)

    def break_off(self) -> None:
        """Leave what is open incomplete: no event tells of it."""
        if self._open is not None:
            self._open.status = "incomplete"

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        message = self._open
        if not isinstance(message, _Message):
            message = _Message(len(self._items))
            events += self._begin(message)
        return [*events, message.add(text, logprobs)]

    def _begin(self, item: _Message | _Call) -> list[dict[str, Any]]:
        events = self._end("incomplete" if isinstance(self._open, _Call) else "completed")
        self._items.append(item)
        self._open = item
        return events + item.begin()

    def _end(self, status: Ended) -> list[dict[str, Any]]:
        item, self._open = self._open, None
        return [] if item is None else item.end(status)
