"""What a request's tool fields ask for together, of this model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_engine.server.errors import invalid
from octavo_engine.server.grammar import OPTIONS
from octavo_engine.server.protocol.constraints import Constraint
from octavo_engine.server.tool_calls.formats import Setting, ToolUse, format_of
from octavo_engine.server.tool_calls.grammar import calls_grammar


def read_tool_use(values: dict[str, Any], template: str | None, setting: Setting) -> ToolUse | None:
    """Return how the answers' calls are read, None if there can be none. Raises ApiError (400).

    `values`: the honoured fields `tools`, `tool_choice` and `parallel_tool_calls`, as `protocol.tools` reads them.
    """
    tools, choice = values["tools"], values["tool_choice"]
    names = tuple(tool["function"]["name"] for tool in tools)
    if choice not in ("none", "auto"):
        _check_forced(choice, names)
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


def _check_forced(choice: str | dict[str, str], names: tuple[str, ...]) -> None:
    """Raise the 400 of a choice that forces a call which cannot be."""
    if not names:
        raise invalid("'tool_choice' needs 'tools' to choose from.", "tool_choice", "invalid_value")
    if isinstance(choice, dict) and choice["name"] not in names:
        raise invalid(
            f"'tool_choice' names '{choice['name']}', which is none of the 'tools'.", "tool_choice", "invalid_value"
        )


def told_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as the chat template is told of them: that calls are held to their schemas is our business."""
    return [
        {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}
        for tool in tools
    ]


def calls_constraint(
    values: dict[str, Any], use: ToolUse, special_ids: Mapping[str, int] | None = None
) -> Constraint | None:
    """Return what an answer must be like: of a choice that forces a call, or of strict functions; None for free text.

    A function that is not strict is held to its schema only where it must be called. special_ids: as `calls_grammar`
    takes them.
    """
    choice, functions = values["tool_choice"], [tool["function"] for tool in values["tools"]]
    forced = choice != "auto"
    if not forced and not any(function.get("strict") for function in functions):
        return None
    if isinstance(choice, dict):
        functions = [function for function in functions if function["name"] == choice["name"]]
    grammar = calls_grammar(
        use.format,
        [function if forced or function.get("strict") else {**function, "parameters": {}} for function in functions],
        required=forced,
        parallel=use.parallel and not isinstance(choice, dict),
        special_ids=special_ids,
        options=OPTIONS,
    )
    return Constraint("grammar", grammar)
