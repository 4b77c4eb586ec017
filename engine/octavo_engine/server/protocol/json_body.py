"""Read a request body as strict JSON (RFC 8259): no NaN, no infinities, no doubled keys, no half characters."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from octavo_engine.server.errors import ApiError, invalid

MAX_DEPTH = 64


class _Strict(ValueError):
    """Something JSON's grammar or our reading of it forbids."""


def _no_constant(name: str) -> NoReturn:
    raise _Strict(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Strict(f"the number {text[:40]} is out of range")
    return number


def _integer(text: str) -> int:
    if len(text) > 40:
        raise _Strict(f"the number {text[:20]}… is out of range")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Strict(f"the key {json.dumps(doubled[:80])} appears twice in one object")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer
)


def _check_nesting_and_characters(value: Any) -> None:
    """Walk without recursion: refuse depth over MAX_DEPTH and strings that are not Unicode text (lone surrogates)."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise _Strict("a string holds half of a surrogate pair, which is no character") from None
        elif isinstance(item, dict):
            if depth > MAX_DEPTH:
                raise _Strict(f"it is nested deeper than {MAX_DEPTH} levels")
            for key, member in item.items():
                pending.append((key, depth))
                pending.append((member, depth + 1))
        elif isinstance(item, list):
            if depth > MAX_DEPTH:
                raise _Strict(f"it is nested deeper than {MAX_DEPTH} levels")
            pending.extend((member, depth + 1) for member in item if not isinstance(member, int | float))


def parse_text(text: str) -> Any:
    """Return the value of a JSON text from within a body. Raises ValueError on anything else."""
    try:
        value = _DECODER.decode(text.strip(" \t\r\n"))
        _check_nesting_and_characters(value)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return value


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the body's JSON object. Raises ApiError (400) on anything else; the message never quotes much of it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("The request body is not UTF-8.", code="invalid_json") from None
    if not text.strip(" \t\r\n"):
        raise invalid("The request body is empty. Send a JSON object.", code="invalid_json")
    try:
        value = _DECODER.decode(text.strip(" \t\r\n"))
        _check_nesting_and_characters(value)
    except json.JSONDecodeError as error:
        raise invalid(
            f"The request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            code="invalid_json",
        ) from None
    except RecursionError:
        raise _refused(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except _Strict as error:
        raise _refused(str(error)) from None
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.", code="invalid_json")
    return value


def _refused(reason: str) -> ApiError:
    return invalid(f"The request body is not valid JSON: {reason}.", code="invalid_json")
