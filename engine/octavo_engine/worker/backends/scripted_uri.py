"""`scripted://?prefill=8000&step=20ms&blocks=512`: what a scripted model is told, parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

NUM_BYTES: Final = 256
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257, 258; ids 0 to 255 are the bytes."""
EOS_TOKEN: Final = NUM_BYTES
MIN_VOCABULARY: Final = NUM_BYTES + len(SPECIAL_TOKENS)

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class ScriptedUriError(ValueError):
    """The URI asks for something a scripted model does not know; the message says what it knows."""


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """A scripted model.

    `step` seconds every step takes, and 1 / `prefill` more for each token (0: none). `blocks` of `block_size` tokens
    in each KV group; `window` adds a second group of that window. `eos` is the probability that a token is EOS, `seed`
    another model. `script` is what it writes, then EOS, instead of text of its own; a prompt that ends with the
    beginning of the script is taken for it. `nan_token`: a sequence holding it has logits that are not finite;
    `raise_token`: a step computing it raises; `hang_token`: it never returns. -1 is none.
    """

    prefill: float = 0.0
    step: float = 0.0
    blocks: int = 512
    block_size: int = 16
    max_len: int = 8192
    vocab: int = MIN_VOCABULARY
    window: int = 0
    eos: float = 0.01
    seed: int = 0
    script: tuple[int, ...] = ()
    nan_token: int = -1
    raise_token: int = -1
    hang_token: int = -1


def parse_scripted_uri(uri: str) -> ScriptedOptions:
    """Return the options of a `scripted://` URI. Raises ScriptedUriError with one sentence on what to change."""
    parts = urlsplit(uri)
    if parts.scheme != "scripted" or parts.netloc or parts.path.strip("/") or parts.fragment:
        raise ScriptedUriError(f"{uri!r} is not a scripted model: write scripted://?key=value&key=value")
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ScriptedUriError(f"{parts.query!r} is not key=value&key=value") from None
    for key, text in pairs:
        if key not in _KEYS:
            raise ScriptedUriError(f"a scripted model has no option {key!r}; it has {', '.join(_KEYS)}")
        field, parse, meaning = _KEYS[key]
        if field in values:
            raise ScriptedUriError(f"{key} is given twice")
        try:
            values[field] = parse(text)
        except ValueError:
            raise ScriptedUriError(f"{key}={text!r} is not {meaning}") from None
    options = ScriptedOptions(**values)
    _check(options)
    return options


def _check(options: ScriptedOptions) -> None:
    for key, (field, _, _) in _KEYS.items():
        value = getattr(options, field)
        tokens = value if field == "script" else (value,) if field.endswith("_token") and value >= 0 else ()
        if any(token >= options.vocab for token in tokens):
            raise ScriptedUriError(f"{key} names a token outside the vocabulary: ids go from 0 to {options.vocab - 1}")
    if options.window == 1:
        raise ScriptedUriError("window=1 sees no token before its own; use 2 or more, or leave it out")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s)", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def _rate(text: str) -> float:
    if not re.fullmatch(r"\d+(?:\.\d*)?", text):
        raise ValueError(text)
    return float(text)


def _probability(text: str) -> float:
    value = _rate(text)
    if value > 1:
        raise ValueError(text)
    return value


def _at_least(smallest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < smallest:
            raise ValueError(text)
        return int(text)

    return parse


def _ids(text: str) -> tuple[int, ...]:
    return tuple(_at_least(0)(part) for part in text.split(","))


_KEYS: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    "prefill": ("prefill", _rate, "a number of tokens per second"),
    "step": ("step", _seconds, "a time such as 20ms, 1.5s or 500us"),
    "blocks": ("blocks", _at_least(1), "a number of KV blocks, at least 1"),
    "block_size": ("block_size", _at_least(1), "a number of tokens, at least 1"),
    "max_len": ("max_len", _at_least(2), "a number of tokens, at least 2"),
    "vocab": ("vocab", _at_least(MIN_VOCABULARY), f"a number of tokens, at least {MIN_VOCABULARY}"),
    "window": ("window", _at_least(0), "a number of tokens"),
    "eos": ("eos", _probability, "a probability from 0 to 1"),
    "seed": ("seed", _at_least(0), "a number from 0"),
    "script": ("script", _ids, "token ids separated by commas"),
    "nan": ("nan_token", _at_least(0), "a token id"),
    "raise": ("raise_token", _at_least(0), "a token id"),
    "hang": ("hang_token", _at_least(0), "a token id"),
}
assert {field for field, _, _ in _KEYS.values()} == {field.name for field in fields(ScriptedOptions)}
