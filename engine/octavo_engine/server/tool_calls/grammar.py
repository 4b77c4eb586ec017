"""The grammar of an answer with calls, as llguidance reads it: for calls that must be made, and for strict functions.

It holds calls to what the model was trained to write and our own parser reads, and their arguments to the functions'
schemas. Text that need not be calls is free up to what begins one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo_engine.server.tool_calls import hermes, mistral
from octavo_engine.server.tool_calls.formats import Format

_TEXT: Final = r"TEXT: /(.|\n)*/"
_NO_OBJECT: Final = r"TEXT: /[ \t\r\n]*([^{ \t\r\n](.|\n)*)?/"


def calls_grammar(
    form: Format,
    functions: Sequence[Mapping[str, Any]],
    *,
    required: bool = True,
    parallel: bool = True,
    special_ids: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return Lark's notation of an answer that calls some of `functions` (each with `name` and `parameters`).

    required: it is a call, or several if `parallel`, and nothing else; otherwise there may be text, and no call at all.
    special_ids: ids of the format's tags that are special tokens of the model. options: `x-guidance` of each schema.
    """
    special = special_ids or {}
    rules = _required(form, parallel, special) if required else _free(form, parallel, special)
    rules.append("call: " + " | ".join(f"call_{place}" for place in range(len(functions))))
    for place, function in enumerate(functions):
        schema = {**function["parameters"]}
        if options:
            schema["x-guidance"] = dict(options)
        rules.append(f"call_{place}: {_call(form, function['name'], f'arguments_{place}', special)}")
        rules.append(f"arguments_{place}: %json {json.dumps(schema)}")
    return "\n".join(rules) + "\n"


def _required(form: Format, parallel: bool, special: Mapping[str, int]) -> list[str]:
    if form == "llama3":
        before, between, after = "", '"; "', ""
    elif form == "hermes":
        before, after = rf'{_tag(hermes.OPEN, special)} "\n"', rf'"\n" {_tag(hermes.CLOSE, special)}'
        between = rf'{after} "\n" {before}'
    elif mistral.ARGS in special:
        before, between, after = _tag(mistral.CALLS, special), _tag(mistral.CALLS, special), ""
    else:
        before, between, after = _tag(mistral.CALLS, special) + ' "["', '", "', '"]"'
    more = f"({between} call)*" if parallel else ""
    return ["start: " + " ".join(part for part in (before, "call", more, after) if part)]


def _free(form: Format, parallel: bool, special: Mapping[str, int]) -> list[str]:
    more = "*" if parallel else "?"
    if form == "llama3":
        further = ' ("; " call)*' if parallel else ""
        return [f"start: call{further} | text", "text: TEXT", _NO_OBJECT]
    if form == "hermes":
        opening, closing = hermes.OPEN, rf' "\n" call "\n" {_tag(hermes.CLOSE, special)}'
    elif mistral.ARGS in special:
        opening, closing = mistral.CALLS, " call"
    else:
        opening, closing, more = mistral.CALLS, ' "[" call' + (' (", " call)*' if parallel else "") + ' "]"', "?"
    rules = [f"start: (opening{closing}){more} text", "text: TEXT", _TEXT]
    # Text ends at the first tag: as a special token it is no text anyhow, else a lazy lexeme sees to it.
    name = "opening" if opening in special else "opening[lazy]"
    return [*rules, f"{name}: TEXT {_tag(opening, special)}"]


def _call(form: Format, name: str, arguments: str, special: Mapping[str, int]) -> str:
    if form == "mistral" and mistral.ARGS in special:
        return f"{json.dumps(name)} {_tag(mistral.ARGS, special)} {arguments}"
    key = "parameters" if form == "llama3" else "arguments"
    opening = f'{{"name": {json.dumps(name)}, "{key}": '
    return f'{json.dumps(opening)} {arguments} "}}"'


def _tag(tag: str, special: Mapping[str, int]) -> str:
    return f"<[{special[tag]}]>" if tag in special else json.dumps(tag)
