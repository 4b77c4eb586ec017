"""OpenAI's message shapes as chat templates expect them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from octavo_engine.server.protocol.json_body import parse_text
from octavo_engine.server.template.errors import TemplateError

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send an assistant's earlier reasoning; templates read the first two."""


class Reads(NamedTuple):
    """What a template reads of messages.

    parts: it iterates over lists of parts itself; otherwise texts are joined by line breaks. developer: it knows that
    role, which is `system` otherwise. calls: it writes an assistant's tool calls. arguments_as_text: it takes their
    arguments to be text; otherwise they are objects. short_ids: it demands the nine characters of Mistral's ids.
    """

    parts: bool = False
    developer: bool = False
    calls: bool = False
    arguments_as_text: bool = False
    short_ids: bool = False


def plain_messages(messages: Sequence[Mapping[str, Any]], reads: Reads) -> list[dict[str, Any]]:
    """Return fresh, plain messages, as the template reads them. Raises `TemplateError` naming the message at fault.

    `content: null` is allowed for the assistant and is empty text.
    """
    if not messages:
        raise TemplateError("messages is empty: send at least one message.")
    return [_plain_message(message, f"messages[{place}]", reads) for place, message in enumerate(messages)]


def _plain_message(message: Mapping[str, Any], where: str, reads: Reads) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise TemplateError(f"{where}.role is {role!r}: send one of {known}.", f"{where}.role")
    if role == "developer" and not reads.developer:
        role = "system"
    plain = {key: _plain(value, f"{where}.{key}") for key, value in message.items() if value is not None}
    plain["role"] = role
    plain["content"] = _content(message.get("content"), role, f"{where}.content", reads.parts)
    if plain.get("tool_calls"):
        plain["tool_calls"] = _calls(plain["tool_calls"], f"{where}.tool_calls", reads)
    if reads.short_ids and "tool_call_id" in plain:
        plain["tool_call_id"] = short_id(str(plain["tool_call_id"]))
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _calls(calls: Any, where: str, reads: Reads) -> Any:
    """Return an assistant's calls with their arguments and ids as the template takes them."""
    if not reads.calls:
        raise TemplateError(f"{where} has no place in this model's chat template, which knows no tool calls.", where)
    for call in calls if isinstance(calls, list) else ():
        if reads.short_ids and "id" in call:
            call["id"] = short_id(str(call["id"]))
        function = call.get("function")
        if isinstance(function, dict) and not reads.arguments_as_text:
            function["arguments"] = _object(function.get("arguments"))
    return calls


def _object(arguments: Any) -> Any:
    """Return arguments as an object; what a model once wrote that is none stays the text it is."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        value = parse_text(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def short_id(identifier: str) -> str:
    """Return nine letters and digits for a call's id, always the same ones: Mistral's templates refuse other ids."""
    if len(identifier) == 9 and identifier.isascii() and identifier.isalnum():
        return identifier
    return hashlib.sha256(identifier.encode()).hexdigest()[:9]


def _content(content: Any, role: str, where: str, keeps_parts: bool) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return str(content)
    if content is None:
        if role == "assistant":
            return ""
        raise TemplateError(f"{where} is missing: only an assistant's content may be null.", where)
    if not isinstance(content, (list, tuple)):
        raise TemplateError(f"{where} is neither text nor a list of parts.", where)
    texts = [_part_text(part, f"{where}[{place}]") for place, part in enumerate(content)]
    if keeps_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return str(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind != "text":
        raise TemplateError(f"{where} is of type {kind!r}: this model reads parts of type 'text' only.", where)
    if not isinstance(part.get("text"), str):
        raise TemplateError(f"{where}.text is not text.", f"{where}.text")
    return str(part["text"])


def _plain(value: Any, where: str) -> Any:
    """Return a copy made of JSON's own types only: a template must never meet an object with methods of ours."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    raise TemplateError(f"{where} holds a value that is not JSON.", where)


def plain_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return template variables as JSON's own types. Raises `TemplateError`."""
    return {name: _plain(value, name) for name, value in variables.items()}
