"""What a request says its text must be like, in the ways OpenAI's and vLLM's clients say it."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, NamedTuple

from octavo_engine.server.errors import ApiError, invalid
from octavo_engine.server.protocol.fields import (
    NOT_ASKED,
    Schema,
    Unreadable,
    check_members,
    described,
    schema_of,
    string,
)
from octavo_engine.server.protocol.json_body import parse_object

MAX_GRAMMAR_BYTES: Final = 128 * 1024
"""Of a JSON schema, a regular expression, a grammar, or the choices together."""
MAX_NAME_CHARACTERS: Final = 64
FIELDS: Final = (
    "response_format",
    "text",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


class Constraint(NamedTuple):
    """What the text must be like. `text`: a JSON schema, a regular expression, a grammar, or a JSON list of choices.

    `path` leads from the field to where it stands.
    """

    kind: Literal["schema", "regex", "choice", "grammar"]
    text: str
    path: str = ""


ANY_OBJECT: Final = Constraint("schema", '{"type":"object"}')

_NOT_EMPTY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_GRAMMAR_BYTES}
_JSON_SCHEMA: Final[Schema] = {"type": ["object", "boolean", "string"], "description": "A JSON Schema, or one as text"}
_UNNAMED_FORM: Final[Schema] = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object"]}},
    "additionalProperties": NOT_ASKED,
}
_NAMED_FORM: Final[Schema] = {
    "name": {"type": ["string", "null"], "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
    "description": {"type": ["string", "null"]},
    "strict": {"type": ["boolean", "null"]},
    "schema": _JSON_SCHEMA,
}


def the_constraint(values: dict[str, Any]) -> tuple[str, Constraint] | None:
    """Return the one constraint that the fields' values name, with its field. Raises the 400 of two."""
    named = [(name, values[name]) for name in FIELDS if values.get(name) is not None]
    if len(named) > 1:
        raise invalid(
            f"'{named[0][0]}' and '{named[1][0]}' both say what the text must be like: give one of them.",
            named[1][0],
            "invalid_value",
        )
    return named[0] if named else None


@described(
    anyOf=[
        _UNNAMED_FORM,
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["schema"],
                    "properties": _NAMED_FORM,
                    "additionalProperties": NOT_ASKED,
                },
            },
            "additionalProperties": NOT_ASKED,
        },
    ]
)
def read_response_format(value: Any) -> Constraint | None:
    """Read OpenAI's `response_format`."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object")
    if value.get("type") != "json_schema":
        return _without_schema(value, "")
    check_members(value, ("type", "json_schema"))
    return _named_schema(value.get("json_schema"), ".json_schema")


@described(
    type="object",
    properties={
        "verbosity": {"enum": [None, "medium"]},
        "format": {
            "anyOf": [
                {"type": "null"},
                _UNNAMED_FORM,
                {
                    "type": "object",
                    "required": ["type", "schema"],
                    "properties": {"type": {"const": "json_schema"}, **_NAMED_FORM},
                    "additionalProperties": NOT_ASKED,
                },
            ]
        },
    },
    additionalProperties=NOT_ASKED,
)
def read_text(value: Any) -> Constraint | None:
    """Read `text` of /v1/responses: a format whose schema stands beside its type."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object")
    check_members(value, ("verbosity", "format"))
    if value.get("verbosity") not in (None, "medium"):
        raise Unreadable("is not supported: leave it out", ".verbosity")
    form = value.get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise Unreadable("must be an object", ".format")
    if form.get("type") != "json_schema":
        return _without_schema(form, ".format")
    if form.get("json_schema") is not None:
        raise Unreadable("is a member of chat's: put what it has beside 'type'", ".format.json_schema")
    return _named_schema(form, ".format", beside_type=True)


def _without_schema(value: dict[str, Any], path: str) -> Constraint | None:
    if value.get("type") not in ("text", "json_object"):
        raise Unreadable("must be 'text', 'json_object' or 'json_schema'", f"{path}.type")
    for name in ("schema", "json_schema"):
        if value.get(name) is not None:
            raise Unreadable("is read with type 'json_schema' only", f"{path}.{name}")
    check_members(value, ("type",), path)
    return ANY_OBJECT if value["type"] == "json_object" else None


def _named_schema(value: Any, path: str, beside_type: bool = False) -> Constraint:
    """Read a named schema. beside_type: its type stands in the same object."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object", path)
    check_members(value, ("type", *_NAMED_FORM) if beside_type else tuple(_NAMED_FORM), path)
    name = value.get("name")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS):
        raise Unreadable(f"must be a string of 1 to {MAX_NAME_CHARACTERS} characters", f"{path}.name")
    if value.get("strict") is not None and type(value["strict"]) is not bool:
        raise Unreadable("must be true or false", f"{path}.strict")
    if value.get("description") is not None and not isinstance(value["description"], str):
        raise Unreadable("must be a string", f"{path}.description")
    if value.get("schema") is None:
        raise Unreadable("is missing; for any JSON object ask for type 'json_object'", f"{path}.schema")
    return _at(f"{path}.schema", read_schema, value["schema"])


@described(**_JSON_SCHEMA)
def read_schema(value: Any) -> Constraint:
    """Read a JSON schema: an object, true, or either as text."""
    if isinstance(value, str):
        _check_size(value)
        if value.strip() in ("true", "false"):
            value = value.strip() == "true"
        else:
            try:
                value = parse_object(value.encode())
            except ApiError as error:
                reason = error.message.removeprefix("The request body ").rstrip(".")
                raise Unreadable(f"must be a JSON schema, but the text {reason}") from None
    if not isinstance(value, dict | bool):
        raise Unreadable("must be a JSON schema, which is an object")
    return Constraint("schema", _check_size(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))


@described(**_NOT_EMPTY)
def read_regex(value: Any) -> Constraint:
    """Read a regular expression that the whole text must match."""
    return Constraint("regex", _check_size(string(value)))


@described(type="array", items={"type": "string"}, minItems=1)
def read_choice(value: Any) -> Constraint:
    """Read a list of texts, one of which is the answer."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise Unreadable("must be a list of strings, not empty")
    return Constraint("choice", _check_size(json.dumps(value, ensure_ascii=False)))


@described(**_NOT_EMPTY)
def read_grammar(value: Any) -> Constraint:
    """Read a context-free grammar: Lark's notation, or GBNF's."""
    return Constraint("grammar", _check_size(string(value)))


@described(const=True)
def _read_any_object(value: Any) -> Constraint:
    if value is not True:
        raise Unreadable("must be true or false")
    return ANY_OBJECT


_KINDS: Final = {
    "json": read_schema,
    "regex": read_regex,
    "choice": read_choice,
    "grammar": read_grammar,
    "json_object": _read_any_object,
}
_NOTHING: Final[Schema] = {"enum": [None, False]}


@described(
    type="object",
    properties={name: {"anyOf": [schema_of(read), _NOTHING]} for name, read in _KINDS.items()},
    additionalProperties=_NOTHING,
)
def read_structured_outputs(value: Any) -> Constraint | None:
    """Read vLLM's `structured_outputs`: one of several kinds, and no options."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object")
    asked = {name: item for name, item in value.items() if item is not None and item is not False}
    for name in asked:
        if name not in _KINDS:
            raise Unreadable("is not supported here", f".{name}")
    if not asked:
        return None
    if len(asked) > 1:
        raise Unreadable(f"must have one of {', '.join(_KINDS)}, not several")
    ((name, item),) = asked.items()
    return _at(f".{name}", _KINDS[name], item)


def _check_size(text: str) -> str:
    if not text:
        raise Unreadable("must not be empty")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
        raise Unreadable(f"may have at most {MAX_GRAMMAR_BYTES // 1024} KiB")
    return text


def _at(path: str, read: Any, value: Any) -> Constraint:
    try:
        constraint: Constraint = read(value)
    except Unreadable as error:
        raise Unreadable(error.message, path + error.path) from None
    return constraint._replace(path=path)
