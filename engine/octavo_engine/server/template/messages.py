"""OpenAI's message shapes as chat templates expect them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo_engine.server.template.errors import TemplateError

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send an assistant's earlier reasoning; templates read the first two."""


def plain_messages(
    messages: Sequence[Mapping[str, Any]], *, keeps_parts: bool, knows_developer: bool
) -> list[dict[str, Any]]:
    """Return fresh, plain messages. Raises `TemplateError` naming the message at fault.

    Text parts are joined by line breaks unless the template iterates over parts itself. `content: null` is allowed for
    the assistant and is empty text. `developer` is `system` for a template that does not know it.
    """
    if not messages:
        raise TemplateError("messages is empty: send at least one message.")
    return [
        _plain_message(message, f"messages[{place}]", keeps_parts, knows_developer)
        for place, message in enumerate(messages)
    ]


def _plain_message(message: Mapping[str, Any], where: str, keeps_parts: bool, knows_developer: bool) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise TemplateError(f"{where}.role is {role!r}: send one of {known}.", f"{where}.role")
    if role == "developer" and not knows_developer:
        role = "system"
    plain = {key: _plain(value, f"{where}.{key}") for key, value in message.items() if value is not None}
    plain["role"] = role
    plain["content"] = _content(message.get("content"), role, f"{where}.content", keeps_parts)
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


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
