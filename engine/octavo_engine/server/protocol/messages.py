"""Chat messages: the shapes that are understood, flattened to role and text."""

from __future__ import annotations

from typing import Any, Final

from octavo_engine.server.protocol.fields import Unreadable

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""`developer` is the newer name of `system`; templates know the older one."""


def read_messages(value: Any) -> list[dict[str, str]]:
    """Return `[{"role", "content"}]`, content a string. Raises Unreadable with the path of what is at fault."""
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise Unreadable(f"may have at most {MAX_MESSAGES} messages")
    return [_message(item, f"[{index}]") for index, item in enumerate(value)]


def _message(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Unreadable("must be an object with 'role' and 'content'", path)
    role = value.get("role")
    if role in ("tool", "function"):
        raise Unreadable("is a tool's answer: tools are not supported yet", f"{path}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Unreadable(f"must be one of {', '.join(_ROLES)}", f"{path}.role")
    for name in ("tool_calls", "function_call"):
        if value.get(name) not in (None, []):
            raise Unreadable("is not supported yet", f"{path}.{name}")
    if "content" not in value:
        raise Unreadable("is missing", f"{path}.content")
    return {"role": _ROLES[role], "content": _content(value["content"], role, f"{path}.content")}


def _content(value: Any, role: str, path: str) -> str:
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return ""
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a string or a list of text parts", path)
    if len(value) > MAX_PARTS:
        raise Unreadable(f"may have at most {MAX_PARTS} parts", path)
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise Unreadable("must be an object with 'type' and 'text'", path)
    if value.get("type") != "text":
        raise Unreadable("must be 'text': other kinds of content are not supported yet", f"{path}.type")
    text = value.get("text")
    if not isinstance(text, str):
        raise Unreadable("must be a string", f"{path}.text")
    return text
