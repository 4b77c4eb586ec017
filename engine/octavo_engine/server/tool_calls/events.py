"""What a model's text turns out to be, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Text(NamedTuple):
    """Content: text that belongs to no call."""

    text: str


class CallStarted(NamedTuple):
    """A call whose name is known; calls count from 0."""

    call: int
    id: str
    name: str


class Arguments(NamedTuple):
    """The next piece of a call's arguments, JSON text."""

    call: int
    text: str


class CallEnded(NamedTuple):
    """A call is whole: its arguments are complete."""

    call: int


Event = Text | CallStarted | Arguments | CallEnded


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the events with neighbouring pieces of the same text joined."""
    found: list[Event] = []
    pieces: list[str] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Text | Arguments) and _continues(event, last):
            pieces.append(event.text)
        else:
            _close(found, pieces)
            found.append(event)
            pieces = [event.text] if isinstance(event, Text | Arguments) else []
    _close(found, pieces)
    return found


def _continues(event: Text | Arguments, last: Event | None) -> bool:
    if isinstance(event, Text):
        return isinstance(last, Text)
    return isinstance(last, Arguments) and last.call == event.call


def _close(found: list[Event], pieces: list[str]) -> None:
    """Give the last event the pieces that were collected for it."""
    if len(pieces) > 1:
        last = found[-1]
        if isinstance(last, Text):
            found[-1] = Text("".join(pieces))
        elif isinstance(last, Arguments):
            found[-1] = Arguments(last.call, "".join(pieces))
