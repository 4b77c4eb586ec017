"""The grammar of an answer that has to be calls (`tool_choice` required, or naming a function), as llguidance reads it.

It holds the text to what the model was trained to write and what our own parser reads, and each call's arguments to the
function's schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.server.tool_calls import hermes, mistral
from octavo_engine.server.tool_calls.formats import Format


def forced_calls(
    form: Format,
    functions: Sequence[Mapping[str, Any]],
    *,
    parallel: bool = True,
    special_ids: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return Lark's notation of one call, or several, of some of `functions` (each with `name` and `parameters`).

    special_ids: ids of the format's tags that are special tokens of the model. options: `x-guidance` of each schema.
    """
    special = special_ids or {}
    rules = ["call: " + " | ".join(f"call_{place}" for place in range(len(functions)))]
    before, between, after = _around(form, special)
    more = f" ({between} call)*" if parallel else ""
    rules.insert(0, " ".join(part for part in (f"start: {before} call{more}", after) if part))
    for place, function in enumerate(functions):
        schema = {**function["parameters"]}
        if options:
            schema["x-guidance"] = dict(options)
        rules.append(f"call_{place}: {_call(form, function['name'], f'arguments_{place}', special)}")
        rules.append(f"arguments_{place}: %json {json.dumps(schema)}")
    return "\n".join(rules) + "\n"


def _around(form: Format, special: Mapping[str, int]) -> tuple[str, str, str]:
    """Return what stands before the first call, between two, and behind the last."""
    if form == "hermes":
        begin, end = _tag(hermes.OPEN, special) + r' "\n"', r'"\n" ' + _tag(hermes.CLOSE, special)
        return begin, rf'{end} "\n" {begin}', end
    if form == "llama3":
        return "", '"; "', ""
    tag = _tag(mistral.CALLS, special)
    if mistral.ARGS in special:
        return tag, tag, ""
    return f'{tag} "["', '", "', '"]"'


def _call(form: Format, name: str, arguments: str, special: Mapping[str, int]) -> str:
    if form == "mistral" and mistral.ARGS in special:
        return f"{json.dumps(name)} {_tag(mistral.ARGS, special)} {arguments}"
    key = "parameters" if form == "llama3" else "arguments"
    opening = f'{{"name": {json.dumps(name)}, "{key}": '
    return f'{json.dumps(opening)} {arguments} "}}"'


def _tag(tag: str, special: Mapping[str, int]) -> str:
    return f"<[{special[tag]}]>" if tag in special else json.dumps(tag)
