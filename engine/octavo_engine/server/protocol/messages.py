"""Chat messages: the shapes that are understood, flattened to role, text, and what belongs to tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from octavo_engine.server.protocol.fields import Schema, Unreadable, described
from octavo_engine.server.protocol.tools import FUNCTION_NAME, MAX_TOOLS, function_name

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
MAX_CALL_ID_CHARACTERS: Final = 256
ROLES: Final = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}
"""`developer` is the newer name of `system`; templates know the older one."""
_PARTS: Final = {"text": "text"}
_OF_OTHER_SERVERS: Final[dict[str, tuple[Any, ...]]] = {
    "prefix": (False,),
    "partial": (False,),
    "images": ([],),
    "videos": ([],),
    "audios": ([],),
    "files": ([],),
    "audio": (),
}
"""Members of messages that change the answer elsewhere, and the values of theirs that ask for nothing."""
NOT_HERE: Final[dict[str, Schema]] = {name: {"enum": [None, *no_op]} for name, no_op in _OF_OTHER_SERVERS.items()}


class Conversation(NamedTuple):
    """The messages a prompt is rendered from. `field`: the request's field that they come from.

    `places`: where in the request each of them stands, if it is not the field's own list of messages.
    """

    field: str
    messages: list[dict[str, Any]]
    places: Sequence[str] = ()

    def located(self, path: str) -> str:
        """Return where in the request the message is that a path like `messages[2].content` leads to."""
        if not self.places:
            return path
        if not path.startswith("messages["):
            return self.field
        return self.places[int(path[len("messages[") : path.index("]")])]


_PART: Final[Schema] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_TEXT: Final[Schema] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1, "maxItems": MAX_PARTS}]
}
CALL_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_CHARACTERS}
_CALL: Final[Schema] = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": CALL_ID,
        "type": {"enum": ["function", None]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": FUNCTION_NAME, "arguments": {"type": ["string", "null"], "description": "JSON"}},
        },
    },
}
_MESSAGE: Final[Schema] = {
    "anyOf": [
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["system", "developer", "user"]}, "content": _TEXT, **NOT_HERE},
        },
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"const": "assistant"},
                "content": {"anyOf": [_TEXT, {"type": "null"}]},
                **NOT_HERE,
            },
        },
        {
            "type": "object",
            "required": ["role", "tool_calls"],
            "properties": {
                "role": {"const": "assistant"},
                "content": {"anyOf": [_TEXT, {"type": "null"}]},
                "tool_calls": {"type": "array", "items": _CALL, "minItems": 1, "maxItems": MAX_TOOLS},
                **NOT_HERE,
            },
        },
        {
            "type": "object",
            "required": ["role", "content", "tool_call_id"],
            "properties": {"role": {"const": "tool"}, "content": _TEXT, "tool_call_id": CALL_ID, **NOT_HERE},
        },
    ]
}


@described(type="array", items=_MESSAGE, minItems=1, maxItems=MAX_MESSAGES)
def read_messages(value: Any) -> list[dict[str, Any]]:
    """Return `[{"role", "content"}]`, content a string. Raises Unreadable with the path of what is at fault.

    An assistant's message may have `tool_calls`, at least one; a tool's has the `tool_call_id` of one of those before
    it, and that function's `name`.
    """
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise Unreadable(f"may have at most {MAX_MESSAGES} messages")
    called: dict[str, str] = {}
    return [_message(item, f"[{index}]", called) for index, item in enumerate(value)]


def text_bytes(messages: list[dict[str, Any]]) -> int:
    """Return how many bytes of UTF-8 the messages' texts and calls have."""
    texts = [message["content"] for message in messages]
    texts += [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    return sum(len(text.encode()) for text in texts)


def check_extras(message: Mapping[str, Any], path: str) -> None:
    """Raise Unreadable for what another server would obey; what else a message may carry changes nothing."""
    for name, no_op in _OF_OTHER_SERVERS.items():
        value = message.get(name)
        if value is not None and not any(type(value) is type(item) and value == item for item in no_op):
            raise Unreadable("is not supported here", f"{path}.{name}")


def _message(value: Any, path: str, called: dict[str, str]) -> dict[str, Any]:
    """Read a message. `called`: the functions called before it by the calls' ids, to which its own are added."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object with 'role' and 'content'", path)
    role = value.get("role")
    if role == "function":
        raise Unreadable("is not supported here; use 'tool'", f"{path}.role")
    if not isinstance(role, str) or role not in ROLES:
        raise Unreadable(f"must be one of {', '.join(ROLES)}", f"{path}.role")
    if value.get("function_call") is not None:
        raise Unreadable("is not supported here; use 'tool_calls'", f"{path}.function_call")
    check_extras(value, path)
    message: dict[str, Any] = {"role": ROLES[role]}
    calls = value.get("tool_calls")
    if calls not in (None, []):
        if role != "assistant":
            raise Unreadable("belongs to an assistant's message", f"{path}.tool_calls")
        message["tool_calls"] = _calls(calls, f"{path}.tool_calls")
        called.update((call["id"], call["function"]["name"]) for call in message["tool_calls"])
    elif "content" not in value:
        raise Unreadable("is missing", f"{path}.content")
    if role == "tool":
        message |= read_answered(value.get("tool_call_id"), f"{path}.tool_call_id", called)
    content = value.get("content")
    may_be_null = content is None and role == "assistant"
    message["content"] = "" if may_be_null else read_content(content, f"{path}.content", _PARTS)
    return message


def _calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Unreadable("must be a list of calls", path)
    if len(value) > MAX_TOOLS:
        raise Unreadable(f"may have at most {MAX_TOOLS} calls", path)
    return [_call(item, f"{path}[{index}]") for index, item in enumerate(value)]


def _call(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable("must be an object with 'id', 'type' and 'function'", path)
    if value.get("type") not in (None, "function"):
        raise Unreadable("must be 'function': other kinds of calls are not supported", f"{path}.type")
    function = value.get("function")
    if not isinstance(function, dict):
        raise Unreadable("must be an object with 'name' and 'arguments'", f"{path}.function")
    return read_call(value.get("id"), f"{path}.id", function, f"{path}.function")


def read_call(identifier: Any, id_path: str, function: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return an assistant's call, whose id stands at `id_path` and whose name and arguments at `path`."""
    name = function_name(function.get("name"), f"{path}.name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):
        raise Unreadable("must be a string of JSON", f"{path}.arguments")
    return {
        "id": _call_id(identifier, id_path),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def read_answered(identifier: Any, path: str, called: Mapping[str, str]) -> dict[str, str]:
    """Return which call a tool's message answers. `called`: the functions called before it by the calls' ids."""
    identifier = _call_id(identifier, path)
    if identifier not in called:
        raise Unreadable("is the id of no call before it", path)
    return {"tool_call_id": identifier, "name": called[identifier]}


def _call_id(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CALL_ID_CHARACTERS:
        raise Unreadable(f"must be a string of 1 to {MAX_CALL_ID_CHARACTERS} characters", path)
    return value


def read_content(value: Any, path: str, parts: Mapping[str, str]) -> str:
    """Read a text, or a list of parts, joined by line breaks. parts: where the text of each kind of part stands."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a string or a list of text parts", path)
    if len(value) > MAX_PARTS:
        raise Unreadable(f"may have at most {MAX_PARTS} parts", path)
    return "\n".join([_part(part, f"{path}[{index}]", parts) for index, part in enumerate(value)])


def _part(value: Any, path: str, parts: Mapping[str, str]) -> str:
    first, where = next(iter(parts.items()))
    if not isinstance(value, dict):
        raise Unreadable(f"must be an object with 'type' and '{where}'", path)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in parts:
        raise Unreadable(f"must be '{first}': other kinds of content are not supported yet", f"{path}.type")
    text = value.get(parts[kind])
    if not isinstance(text, str):
        raise Unreadable("must be a string", f"{path}.{parts[kind]}")
    return text
