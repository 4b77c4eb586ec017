"""Mistral's calls: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since 2025 `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import string
from typing import Final

from octavo_engine.server.tool_calls.json_text import Reading
from octavo_engine.server.tool_calls.scanner import MAX_NAME, Broken, Next, NotACall, Scanner, space

CALLS: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
_NAME: Final = frozenset(string.ascii_letters + string.digits + "_-.")


class MistralScanner(Scanner):
    """The newer form repeats its tag for each call; an id of the model's own (`[CALL_ID]…`) is passed over."""

    def _read(self) -> Reading:
        character = yield
        while True:
            if character != "[":
                self._text(character)
                character = yield
                continue
            self._hold(character)
            try:
                yield from self._literal(CALLS[1:])
                self._marked = True
                character = yield from space((yield))
                if character == "[":
                    character = yield from self._list()
                elif character == "{":
                    yield from self._call()
                    character = yield
                else:
                    yield from self._named(character)
                    character = yield
            except NotACall:
                character = self._release()
            except Broken as broken:
                yield from self._rest(broken)

    def _list(self) -> Next:
        """Read a list of calls after its opening bracket."""
        character = yield from space((yield))
        if character != "{":
            raise NotACall
        while True:
            yield from self._call()
            character = yield from space((yield))
            if character == "]":
                return (yield)
            if character == ",":
                character = yield from space((yield))
            if character != "{":
                return character
            self._hold(character, marked=True)

    def _named(self, character: str) -> Reading:
        """Read a name, and arguments behind their tag."""
        name = ""
        while character in _NAME and len(name) <= MAX_NAME:
            name += character
            character = yield
        character = yield from space(character)
        if character == "[":
            character = yield
            if character == CALL_ID[1]:
                yield from self._literal(CALL_ID[2:])
                character = yield
                while character in _NAME:
                    character = yield
                if character != "[":
                    raise NotACall
                character = yield
            if character != ARGS[1]:
                raise NotACall
            yield from self._literal(ARGS[2:])
            character = yield from space((yield))
        if character != "{" or not name:
            raise NotACall
        self._start(name)
        yield from self._arguments(character, self._argue)
        self._end()
