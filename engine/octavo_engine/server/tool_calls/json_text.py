"""JSON (RFC 8259) read one character at a time, to know where a value ends and whether it still can be one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from enum import Enum
from typing import Final

WHITESPACE: Final = " \t\r\n"
SCALAR_CHARACTERS: Final = frozenset("+-.0123456789eEaflnrstu")
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_SCALAR_START: Final = frozenset("-0123456789tfn")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSING: Final = {"{": "}", "[": "]"}

Sink = Callable[[str], object]
Reading = Generator[None, str, None]
"""Takes characters by `send` until what it reads is complete."""


class Malformed(Exception):
    """The character cannot stand there."""

    def __init__(self, character: str) -> None:
        """Name the character at fault."""
        super().__init__(f"unexpected {character!r}")
        self.character = character


def is_scalar(text: str) -> bool:
    """Return whether `text` is a number, true, false or null."""
    return _SCALAR.fullmatch(text) is not None


def string(sink: Sink) -> Reading:
    """Read a string after its opening quote, up to the closing one; `sink` gets what it means. Raises Malformed.

    Line breaks and other control characters are taken as they are: models write them. Half a surrogate pair is U+FFFD.
    """
    high = 0
    while True:
        character = yield
        code = 0
        if character == "\\":
            character, code = yield from _escape()
        elif character == '"':
            if high:
                sink("\ufffd")
            return
        if high and 0xDC00 <= code < 0xE000:
            sink(chr(0x10000 + ((high - 0xD800) << 10) + code - 0xDC00))
            high = 0
            continue
        if high:
            sink("\ufffd")
        high = code if 0xD800 <= code < 0xDC00 else 0
        if not high:
            sink("\ufffd" if 0xDC00 <= code < 0xE000 else character)


def _escape() -> Generator[None, str, tuple[str, int]]:
    """Read an escape after its backslash. Return the character, and its code if it was given by one."""
    character = yield
    if character != "u":
        if character not in _ESCAPES:
            raise Malformed(character)
        return _ESCAPES[character], 0
    digits = ""
    for _ in range(4):
        character = yield
        if character not in _HEX:
            raise Malformed(character)
        digits += character
    code = int(digits, 16)
    return chr(code), code


class _State(Enum):
    FIRST_KEY = "a key or the end"
    KEY = "a key"
    COLON = "a colon"
    FIRST_VALUE = "a value or the end"
    VALUE = "a value"
    AFTER = "a comma or the end"
    STRING = "a string's next character"
    ESCAPE = "what follows a backslash"
    HEX = "a hexadecimal digit"
    SCALAR = "a number's or a word's next character"


class Container:
    """An object or a list, from its opening bracket on. `done` once it is closed."""

    def __init__(self) -> None:
        """Expect the opening bracket."""
        self._open: list[str] = []
        self._state = _State.VALUE
        self._in_key = False
        self._digits = 0
        self._scalar = ""
        self.done = False

    def feed(self, character: str) -> str:
        """Take the next character; return how it is to be written. Raises Malformed.

        That is the character itself; a control character within a string, which JSON does not allow, is escaped.
        """
        if self._state is _State.STRING:
            return self._in_string(character)
        if self._state is _State.ESCAPE or self._state is _State.HEX:
            self._in_escape(character)
        elif self._state is _State.SCALAR and character in SCALAR_CHARACTERS:
            self._scalar += character
        else:
            if self._state is _State.SCALAR:
                if not is_scalar(self._scalar):
                    raise Malformed(character)
                self._state = _State.AFTER
            if character not in WHITESPACE:
                self._structure(character)
        return character

    def _in_string(self, character: str) -> str:
        if character == "\\":
            self._state = _State.ESCAPE
        elif character == '"':
            self._state = _State.COLON if self._in_key else _State.AFTER
        elif character < " ":
            return json.dumps(character)[1:-1]
        return character

    def _in_escape(self, character: str) -> None:
        if self._state is _State.HEX:
            if character not in _HEX:
                raise Malformed(character)
            self._digits += 1
            if self._digits == 4:
                self._state = _State.STRING
        elif character == "u":
            self._state, self._digits = _State.HEX, 0
        elif character in _ESCAPES:
            self._state = _State.STRING
        else:
            raise Malformed(character)

    def _structure(self, character: str) -> None:
        match self._state:
            case _State.VALUE | _State.FIRST_VALUE:
                self._value(character)
            case _State.KEY | _State.FIRST_KEY if character == '"':
                self._state, self._in_key = _State.STRING, True
            case _State.FIRST_KEY if character == "}":
                self._close(character)
            case _State.COLON if character == ":":
                self._state = _State.VALUE
            case _State.AFTER if character == ",":
                self._state = _State.KEY if self._open[-1] == "{" else _State.VALUE
            case _State.AFTER:
                self._close(character)
            case _:
                raise Malformed(character)

    def _value(self, character: str) -> None:
        if character in _CLOSING:
            self._open.append(character)
            self._state = _State.FIRST_KEY if character == "{" else _State.FIRST_VALUE
        elif character == '"':
            self._state, self._in_key = _State.STRING, False
        elif character in _SCALAR_START and self._open:
            self._state, self._scalar = _State.SCALAR, character
        elif self._state is _State.FIRST_VALUE:
            self._close(character)
        else:
            raise Malformed(character)

    def _close(self, character: str) -> None:
        if character != _CLOSING[self._open[-1]]:
            raise Malformed(character)
        self._open.pop()
        self._state = _State.AFTER
        self.done = not self._open
