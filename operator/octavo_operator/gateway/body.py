"""What the picker reads of a request's body: the model's name, the text whose prefix matters, and how much is asked.

Everything else is the engine's to judge. The canonical text says what the prompt says, in its order, without JSON's
accidents: two bodies that render to one prompt have one canonical text.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from . import refusal
from .refusal import Refusal

KEY_BYTES: Final = 1024
"""A conversation without messages is named by the first KEY_BYTES of its text."""
_ROLE: Final = b"\x1e"
_TEXT: Final = b"\x1f"


class _Body(msgspec.Struct):
    """The fields that count here, of all routes; each may be anything, the engine will say what is wrong with it."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    tools: Any = None
    stream: Any = None
    user: Any = None
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None


class Asked(NamedTuple):
    """A request as read. `key` names its conversation, in bytes; `max_tokens` is for all choices, None if not given."""

    model: str
    text: bytes
    key: bytes
    streamed: bool
    max_tokens: int | None


def read(body: bytes) -> Asked | Refusal:
    """Read a body, or say what is wrong with it."""
    try:
        fields = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refusal.bad_body(f"The body is no JSON object ({error}); send one.")
    if not isinstance(fields.model, str) or not fields.model:
        return refusal.bad_body("The field 'model' must name a model; GET /v1/models lists them.", "model")
    text, first_turn = _canonical(fields)
    user = fields.user.encode() if isinstance(fields.user, str) else b""
    return Asked(fields.model, text, user or first_turn, fields.stream is True, _most_tokens(fields))


def _canonical(fields: _Body) -> tuple[bytes, bytes]:
    """Return the whole text, and its beginning through the first message of the user."""
    parts: list[bytes] = []
    if fields.tools:
        parts += [_TEXT, msgspec.json.encode(fields.tools)]
    if fields.instructions:
        parts += [_ROLE, b"system", _TEXT, _text(fields.instructions)]
    turns = fields.messages if isinstance(fields.messages, list) else fields.input
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        parts.append(_text(fields.prompt if turns is None else turns))
        text = b"".join(parts)
        return text, text[:KEY_BYTES]
    until = 0
    for turn in turns:
        role = turn.get("role")
        parts += [_ROLE, role.encode() if isinstance(role, str) else b"", _TEXT, _text(turn.get("content"))]
        rest = {name: value for name, value in turn.items() if name not in ("role", "content")}
        if rest:
            parts += [_TEXT, msgspec.json.encode(rest, order="sorted")]
        if not until and role == "user":
            until = len(parts)
    return b"".join(parts), b"".join(parts[: until or len(parts)])


def _text(content: Any) -> bytes:
    """Return a content's text: a string as it is, a text part by its text, anything else by its JSON."""
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return b"".join(
            part["text"].encode() if isinstance(part.get("text"), str) else msgspec.json.encode(part, order="sorted")
            for part in content
        )
    return msgspec.json.encode(content, order="sorted")


def _most_tokens(fields: _Body) -> int | None:
    choices = fields.n if type(fields.n) is int and fields.n > 1 else 1
    for asked in (fields.max_completion_tokens, fields.max_output_tokens, fields.max_tokens):
        if type(asked) is int and asked >= 0:
            return asked * choices
    return None
