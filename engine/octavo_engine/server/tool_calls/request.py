"""What a request's tool fields ask for together, of this model."""

from __future__ import annotations

from typing import Any

from octavo_engine.server.errors import invalid
from octavo_engine.server.tool_calls.formats import Setting, ToolUse, format_of


def read_tool_use(values: dict[str, Any], template: str | None, setting: Setting) -> ToolUse | None:
    """Return how the answers' calls are read, None if there can be none. Raises ApiError (400).

    `values`: the honoured fields `tools`, `tool_choice` and `parallel_tool_calls`, as `protocol.tools` reads them.
    """
    tools, choice = values["tools"], values["tool_choice"]
    names = tuple(tool["function"]["name"] for tool in tools)
    if choice not in ("none", "auto"):
        _refuse_forced(choice, names)
    if not tools or choice == "none":
        return None
    form = format_of(template, setting)
    if form is None:
        why = (
            "this server reads no tool calls (--tool-call-parser none)"
            if setting == "none"
            else "the model's chat template knows no tool calls that this server can read"
        )
        raise invalid(f"'tools' cannot be used: {why}.", "tools", "unsupported_parameter")
    return ToolUse(form, names, values["parallel_tool_calls"])


def _refuse_forced(choice: str | dict[str, str], names: tuple[str, ...]) -> None:
    """Raise the 400 of a choice that forces a call: which cannot be, or is not done yet."""
    if not names:
        raise invalid("'tool_choice' needs 'tools' to choose from.", "tool_choice", "invalid_value")
    if isinstance(choice, dict) and choice["name"] not in names:
        raise invalid(
            f"'tool_choice.function.name' is '{choice['name']}', which is none of the 'tools'.",
            "tool_choice.function.name",
            "invalid_value",
        )
    shown = "naming a function" if isinstance(choice, dict) else f"'{choice}'"
    raise invalid(f"'tool_choice' {shown} is not supported yet.", "tool_choice", "unsupported_parameter")
