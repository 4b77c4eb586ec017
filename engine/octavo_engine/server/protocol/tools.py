"""The fields that tell a model of functions: their shapes and bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from octavo_engine.server.protocol.fields import Schema, Unreadable, described

MAX_TOOLS: Final = 128
MAX_DESCRIPTION_CHARACTERS: Final = 16 * 1024
MAX_SCHEMA_CHARACTERS: Final = 64 * 1024
MAX_ALL_CHARACTERS: Final = 512 * 1024
"""Of the descriptions and schemas of one request together."""
MAX_SCHEMA_DEPTH: Final = 32
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
FUNCTION_NAME: Final[Schema] = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
"""What a function without `parameters` takes: nothing."""
_FUNCTION: Final[Schema] = {
    "name": FUNCTION_NAME,
    "description": {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION_CHARACTERS},
    "parameters": {
        "type": ["object", "null"],
        "description": "JSON Schema of the arguments",
        "properties": {"type": {"const": "object"}},
    },
    "strict": {"type": ["boolean", "null"]},
}
_TOOL: Final[Schema] = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": _FUNCTION},
    },
}
_FLAT_TOOL: Final[Schema] = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"const": "function"},
        "defer_loading": {"enum": [None, False]},
        "async": {"enum": [None, False]},
        **_FUNCTION,
    },
}
_NAMED_CHOICE: Final[Schema] = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": FUNCTION_NAME}},
    },
}
_FLAT_NAMED_CHOICE: Final[Schema] = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"const": "function"}, "name": FUNCTION_NAME},
}


@described(type="array", items=_TOOL, maxItems=MAX_TOOLS)
def read_tools(value: Any) -> list[dict[str, Any]]:
    """Return the tools as chat templates expect them. Raises Unreadable with the path of what is at fault."""
    return _tools(value, _nested)


@described(type="array", items=_FLAT_TOOL, maxItems=MAX_TOOLS)
def read_flat_tools(value: Any) -> list[dict[str, Any]]:
    """Read the tools of /v1/responses, whose names stand beside their types; returns what `read_tools` does."""
    return _tools(value, _flat)


def _tools(value: Any, opened: Callable[[dict[str, Any], str], tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Read tools. opened: returns a tool's function, and the path to it."""
    if not isinstance(value, list):
        raise Unreadable("must be a list of tools")
    if len(value) > MAX_TOOLS:
        raise Unreadable(f"may have at most {MAX_TOOLS} tools")
    tools: list[dict[str, Any]] = []
    seen: set[str] = set()
    characters = 0
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise Unreadable("must be an object with a 'type'", f"[{index}]")
        stated, path = opened(item, f"[{index}]")
        function = _function(stated, path)
        if function["name"] in seen:
            raise Unreadable("is the name of two tools", f"{path}.name")
        seen.add(function["name"])
        characters += len(function.get("description", "")) + len(json.dumps(function["parameters"], ensure_ascii=False))
        if characters > MAX_ALL_CHARACTERS:
            raise Unreadable(f"may have at most {MAX_ALL_CHARACTERS} characters of descriptions and schemas")
        tools.append({"type": "function", "function": function})
    return tools


def _nested(tool: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    if tool.get("type") != "function":
        raise Unreadable("must be 'function': other kinds of tools are not supported", f"{path}.type")
    function = tool.get("function")
    path += ".function"
    if not isinstance(function, dict):
        raise Unreadable("must be an object with a 'name'", path)
    return function, path


def _flat(tool: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    if tool.get("type") != "function":
        raise Unreadable(
            "must be 'function': this server has no tools of its own, so describe a function and answer its calls",
            f"{path}.type",
        )
    for name in ("defer_loading", "async"):
        if tool.get(name) not in (None, False):
            raise Unreadable("is not supported: leave it out", f"{path}.{name}")
    return tool, path


def _function(function: dict[str, Any], path: str) -> dict[str, Any]:
    read: dict[str, Any] = {"name": function_name(function.get("name"), f"{path}.name")}
    description = function.get("description")
    if description is not None:
        if not isinstance(description, str):
            raise Unreadable("must be a string", f"{path}.description")
        if len(description) > MAX_DESCRIPTION_CHARACTERS:
            raise Unreadable(f"may have at most {MAX_DESCRIPTION_CHARACTERS} characters", f"{path}.description")
        read["description"] = description
    read["parameters"] = _schema(function.get("parameters"), f"{path}.parameters")
    strict = function.get("strict")
    if strict is not None and type(strict) is not bool:
        raise Unreadable("must be true or false", f"{path}.strict")
    if strict:
        read["strict"] = True
    return read


def function_name(value: Any, path: str) -> str:
    """Read the name of a function."""
    if not isinstance(value, str):
        raise Unreadable("must be a string", path)
    if not _NAME.fullmatch(value):
        raise Unreadable("must be 1 to 64 letters, digits, underscores and dashes", path)
    return value


def _schema(value: Any, path: str) -> dict[str, Any]:
    if value is None:
        return dict(_NO_PARAMETERS)
    if not isinstance(value, dict):
        raise Unreadable("must be a JSON Schema, an object", path)
    if value.get("type", "object") != "object":
        raise Unreadable("must be 'object': arguments have names", f"{path}.type")
    _check_depth(value, path)
    if len(json.dumps(value, ensure_ascii=False)) > MAX_SCHEMA_CHARACTERS:
        raise Unreadable(f"may have at most {MAX_SCHEMA_CHARACTERS} characters", path)
    return value


def _check_depth(schema: dict[str, Any], path: str) -> None:
    pending: list[tuple[Any, int]] = [(schema, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict | list):
            if depth > MAX_SCHEMA_DEPTH:
                raise Unreadable(f"may be nested at most {MAX_SCHEMA_DEPTH} levels deep", path)
            members = item.values() if isinstance(item, dict) else item
            pending.extend((member, depth + 1) for member in members)


@described(anyOf=[{"enum": ["none", "auto", "required"]}, _NAMED_CHOICE])
def read_tool_choice(value: Any) -> str | dict[str, str]:
    """Read `none`, `auto`, `required`, or the function to call, as `{"name": …}`."""
    choice = _choice(value)
    if isinstance(choice, str):
        return choice
    function = choice.get("function")
    if not isinstance(function, dict):
        raise Unreadable("must be an object with a 'name'", ".function")
    return {"name": function_name(function.get("name"), ".function.name")}


@described(anyOf=[{"enum": ["none", "auto", "required"]}, _FLAT_NAMED_CHOICE])
def read_flat_tool_choice(value: Any) -> str | dict[str, str]:
    """Read the choice of /v1/responses, whose function's name stands beside the type."""
    choice = _choice(value)
    return choice if isinstance(choice, str) else {"name": function_name(choice.get("name"), ".name")}


def _choice(value: Any) -> str | dict[str, Any]:
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise Unreadable("must be 'function'", ".type")
        return value
    if not isinstance(value, str) or value not in ("none", "auto", "required"):
        raise Unreadable("must be 'none', 'auto', 'required', or an object that names a function")
    return value
