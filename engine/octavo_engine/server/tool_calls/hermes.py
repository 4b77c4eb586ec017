"""Hermes' and Qwen's calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one after another."""

from __future__ import annotations

from typing import Final

from octavo_engine.server.tool_calls.json_text import WHITESPACE, Reading
from octavo_engine.server.tool_calls.scanner import Broken, Next, NotACall, Scanner, space

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class HermesScanner(Scanner):
    """A call may lack its closing tag, or share a pair of tags with others: models do both."""

    def _read(self) -> Reading:
        character = yield
        while True:
            if character != "<":
                self._text(character)
                character = yield
                continue
            self._hold(character)
            try:
                yield from self._literal(OPEN[1:])
                character = yield from self._calls()
            except NotACall:
                character = self._release()
            except Broken as broken:
                yield from self._until_closed(broken)
                character = yield

    def _calls(self) -> Next:
        """Read what follows an opening tag: calls, and the closing tag."""
        self._marked = True
        character = yield from space((yield))
        while True:
            if character != "{":
                raise NotACall
            yield from self._call()
            character = yield
            while character in WHITESPACE or character == "}":  # one brace too many is a slip, not content
                character = yield
            if character == "{":
                self._hold(character, marked=True)
                continue
            if character != "<":
                return character
            self._hold(character, separates=True)
            character = yield
            if character == "/":
                yield from self._literal(CLOSE[2:])
                self._drop()
                return (yield)
            if character != OPEN[1]:
                raise NotACall
            yield from self._literal(OPEN[2:])
            self._marked, self._separates = True, False
            character = yield from space((yield))

    def _until_closed(self, broken: Broken) -> Reading:
        """Take the rest of a call that broke, up to its closing tag."""
        character = broken.character
        while True:
            if character != CLOSE[0]:
                self._garble(broken, character)
                character = yield
                continue
            taken = character
            for expected in CLOSE[1:]:
                character = yield
                if character != expected:
                    break
                taken += character
            else:
                self._end()
                return
            self._garble(broken, taken)
