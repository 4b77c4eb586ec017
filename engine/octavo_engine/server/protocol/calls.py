"""How tool calls look in an answer: OpenAI's objects, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_engine.server.tool_calls.choice import CallDelta


def streamed(calls: Iterable[CallDelta]) -> list[dict[str, Any]]:
    """Return a chunk's entries: id, type and name with the first of a call, arguments with each."""
    return [
        {
            "index": delta.call,
            **({"id": delta.id, "type": "function"} if delta.id else {}),
            "function": {**({"name": delta.name} if delta.id else {}), "arguments": delta.arguments},
        }
        for delta in calls
    ]


def whole(calls: Iterable[CallDelta]) -> list[dict[str, Any]]:
    """Return the calls of a message from all that was told of them, in order."""
    found: dict[int, dict[str, Any]] = {}
    pieces: dict[int, list[str]] = {}
    for delta in calls:
        if delta.id:
            found[delta.call] = {"id": delta.id, "type": "function", "function": {"name": delta.name}}
        pieces.setdefault(delta.call, []).append(delta.arguments)
    for index, call_object in found.items():
        call_object["function"]["arguments"] = "".join(pieces[index])
    return list(found.values())
