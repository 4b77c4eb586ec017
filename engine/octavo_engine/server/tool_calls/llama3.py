"""Llama 3's calls: the answer is `{"name": …, "parameters": {…}}`, or such objects follow `<|python_tag|>`."""

from __future__ import annotations

from typing import Final

from octavo_engine.server.tool_calls.json_text import WHITESPACE, Reading
from octavo_engine.server.tool_calls.scanner import Broken, Next, NotACall, Scanner, space

TAG: Final = "<|python_tag|>"


class Llama3Scanner(Scanner):
    """Without the tag only an answer that begins with the object is a call, and only of a function of the request."""

    def _read(self) -> Reading:
        character = yield
        begins = True
        while True:
            tagged = character == TAG[0]
            if not tagged and not (begins and character == "{"):
                begins = begins and character in WHITESPACE
                self._text(character)
                character = yield
                continue
            self._hold(character)
            begins = False
            try:
                if tagged:
                    yield from self._opened()
                yield from self._call(known=not tagged)
                character = yield from self._further(tagged)
            except NotACall:
                character = self._release()
            except Broken as broken:
                yield from self._rest(broken)

    def _opened(self) -> Reading:
        """Read the tag after its first character, and the opening brace."""
        yield from self._literal(TAG[1:])
        self._marked = True
        character = yield from space((yield))
        if character != "{":
            raise NotACall

    def _further(self, tagged: bool) -> Next:
        """Read further calls, behind semicolons, commas, or nothing. Ends by NotACall, or with what follows."""
        while True:
            character = yield
            self._hold(character, separates=True)
            character = yield from space(character)
            if character in ";,":
                character = yield from space((yield))
            if character == TAG[0]:
                tagged = True
                yield from self._opened()
            elif character != "{":
                raise NotACall
            self._separates = False
            yield from self._call(known=not tagged)
