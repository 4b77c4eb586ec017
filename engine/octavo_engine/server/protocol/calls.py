"""How tool calls look in a chat's answer: OpenAI's objects, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_engine.server.tool_calls.events import Arguments, CallStarted, Event


def streamed(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return a chunk's entries, one for each call: id, type and name with the first of a call, arguments with each."""
    entries: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, CallStarted):
            function = {"name": event.name, "arguments": ""}
            entries[event.call] = {"index": event.call, "id": event.id, "type": "function", "function": function}
        elif isinstance(event, Arguments):
            entry = entries.setdefault(event.call, {"index": event.call, "function": {"arguments": ""}})
            entry["function"]["arguments"] += event.text
    return list(entries.values())


def whole(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the calls of a message from all that it turned out to be, in order."""
    calls: dict[int, dict[str, Any]] = {}
    pieces: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallStarted):
            calls[event.call] = {"id": event.id, "type": "function", "function": {"name": event.name}}
            pieces[event.call] = []
        elif isinstance(event, Arguments):
            pieces[event.call].append(event.text)
    for index, call in calls.items():
        call["function"]["arguments"] = "".join(pieces[index])
    return list(calls.values())
