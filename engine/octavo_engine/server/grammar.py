"""From what a text must be like to llguidance's notation, which the engine compiles."""

from __future__ import annotations

import json
from typing import Any, Final

from octavo_engine.server.protocol.constraints import Constraint

WHITESPACE: Final = r"( |\n[ ]{0,40})?"
"""What may stand between a JSON text's parts: enough to lay it out, and not for ever."""
OPTIONS: Final = {"whitespace_pattern": WHITESPACE, "lenient": False}
"""Of every JSON schema: all its keywords count, and blanks are bounded."""
_START: Final = '%llguidance {"no_forcing": true}\nstart: @constraint\n'
"""Any tokens may spell what has to come next: the engine does not tokenise, so it cannot know the usual ones."""


def serialised(constraint: Constraint) -> str:
    """Return the constraint as llguidance writes it. Raises ValueError for a grammar of no known notation."""
    return json.dumps(
        {"grammars": [{"lark_grammar": _START}, {"name": "constraint", **_inner(constraint)}]}, ensure_ascii=False
    )


def _inner(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case "schema":
            return {"json_schema": _options_set(json.loads(constraint.text))}
        case "regex":
            return {"lark_grammar": f"start: /{_for_lark(constraint.text)}/"}
        case "choice":
            texts = (json.dumps(text) for text in json.loads(constraint.text))
            return {"lark_grammar": "start: " + " | ".join(texts)}
        case "grammar":
            return {"lark_grammar": _lark(constraint.text)}


def _options_set(schema: Any) -> Any:
    """Return the schema with our options."""
    if schema is False:
        return schema
    schema = {} if schema is True else schema
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **OPTIONS}}


def _for_lark(regex: str) -> str:
    from llguidance import regex_to_lark

    return regex_to_lark(regex, use_ascii="")


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:
        raise ValueError(f"it is neither Lark nor GBNF ({error})") from error
