"""The items of `input`: messages, calls and their answers, as the messages of a chat."""

from __future__ import annotations

from typing import Any, Final

from octavo_engine.server.protocol.fields import Schema, Unreadable, described
from octavo_engine.server.protocol.messages import (
    CALL_ID,
    MAX_MESSAGES,
    MAX_PARTS,
    NOT_HERE,
    ROLES,
    Conversation,
    check_extras,
    read_answered,
    read_call,
    read_content,
)
from octavo_engine.server.protocol.tools import FUNCTION_NAME, MAX_TOOLS

_PARTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_ROLES: Final = tuple(role for role in ROLES if role != "tool")
_PART: Final[Schema] = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", where],
            "properties": {"type": {"const": kind}, where: {"type": "string"}},
        }
        for kind, where in _PARTS.items()
    ]
}
_CONTENT: Final[Schema] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1, "maxItems": MAX_PARTS}]
}
_ITEM: Final[Schema] = {
    "anyOf": [
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "type": {"enum": [None, "message"]},
                "role": {"enum": list(_ROLES)},
                "content": _CONTENT,
                **NOT_HERE,
            },
        },
        {
            "type": "object",
            "required": ["type", "call_id", "name"],
            "properties": {
                "type": {"const": "function_call"},
                "call_id": CALL_ID,
                "name": FUNCTION_NAME,
                "arguments": {"type": ["string", "null"]},
            },
        },
        {
            "type": "object",
            "required": ["type", "call_id", "output"],
            "properties": {"type": {"const": "function_call_output"}, "call_id": CALL_ID, "output": _CONTENT},
        },
    ]
}


@described(anyOf=[{"type": "string"}, {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MAX_MESSAGES}])
def read_input(value: Any) -> Conversation:
    """Return the messages that a text or a list of items says. Raises Unreadable with the path of what is at fault."""
    if isinstance(value, str):
        return Conversation("input", [{"role": "user", "content": value}], ["input"])
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a string or a list of at least one item")
    if len(value) > MAX_MESSAGES:
        raise Unreadable(f"may have at most {MAX_MESSAGES} items")
    reading = _Reading()
    for index, item in enumerate(value):
        reading.add(item, f"[{index}]")
    return Conversation("input", reading.messages, reading.places)


def with_instructions(conversation: Conversation, instructions: str | None) -> Conversation:
    """Return the conversation behind the instructions, if there are any."""
    if instructions is None:
        return conversation
    first = {"role": "system", "content": instructions}
    return Conversation("input", [first, *conversation.messages], ["instructions", *conversation.places])


class _Reading:
    """The items so far. What an assistant said in one go is one message, as its chat template wrote it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._called: dict[str, str] = {}

    def add(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise Unreadable("must be an object", path)
        kind = item.get("type")
        if kind is None or kind == "message":
            self._message(item, path)
        elif kind == "function_call":
            self._call(item, path)
        elif kind == "function_call_output":
            self._answer(item, path)
        elif kind == "item_reference":
            raise Unreadable("refers to an item, but nothing is stored here: send the item itself", path)
        else:
            raise Unreadable(
                "must be 'message', 'function_call' or 'function_call_output': leave out items of other types",
                f"{path}.type",
            )

    def _message(self, item: dict[str, Any], path: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise Unreadable(f"must be one of {', '.join(_ROLES)}", f"{path}.role")
        check_extras(item, path)
        if "content" not in item:
            raise Unreadable("is missing", f"{path}.content")
        content = read_content(item["content"], f"{path}.content", _PARTS)
        last = self._assistant()
        if role == "assistant" and last is not None and "tool_calls" in last:
            last["content"] += content
        else:
            self._append({"role": ROLES[role], "content": content}, path)

    def _call(self, item: dict[str, Any], path: str) -> None:
        call = read_call(item.get("call_id"), f"{path}.call_id", item, path)
        last = self._assistant()
        if last is None:
            last = self._append({"role": "assistant", "content": ""}, path)
        calls = last.setdefault("tool_calls", [])
        if len(calls) == MAX_TOOLS:
            raise Unreadable(f"is a call too many: there may be {MAX_TOOLS} side by side", path)
        calls.append(call)
        self._called[call["id"]] = call["function"]["name"]

    def _answer(self, item: dict[str, Any], path: str) -> None:
        answered = read_answered(item.get("call_id"), f"{path}.call_id", self._called)
        content = read_content(item.get("output"), f"{path}.output", _PARTS)
        self._append({"role": "tool", **answered, "content": content}, path)

    def _assistant(self) -> dict[str, Any] | None:
        """Return the last message if it is an assistant's."""
        return self.messages[-1] if self.messages and self.messages[-1]["role"] == "assistant" else None

    def _append(self, message: dict[str, Any], path: str) -> dict[str, Any]:
        self.messages.append(message)
        self.places.append(f"input{path}")
        return message
