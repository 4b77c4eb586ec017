"""Finds tool calls in a growing text: what all formats share.

A format is a generator that is sent one character after another, so what it finds cannot depend on how the text was cut
into pieces. From the first character that may begin a call the text is held; once it cannot be one any more it is let
go as content, and once a call's name is known and its arguments begin, they are passed on as they come.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from typing import Final, Literal, NoReturn

from octavo_engine.server.tool_calls.events import Arguments, CallEnded, CallStarted, Event, Text, merged
from octavo_engine.server.tool_calls.json_text import (
    SCALAR_CHARACTERS,
    WHITESPACE,
    Container,
    Malformed,
    Reading,
    Sink,
    is_scalar,
    string,
)

Ending = Literal["end", "stop_string", "length"]
"""How a text ended: by the model's own end, by a stop string, or because it became too long."""
Next = Generator[None, str, str]
"""Takes characters until what it reads is complete; returns the first one behind it."""

_ARGUMENTS: Final = ("arguments", "parameters")
_KEYS: Final = frozenset({"name", "id", "type", *_ARGUMENTS})
"""What a call's object holds; an object that begins with anything else is none."""
MAX_NAME: Final = 256


class NotACall(Exception):
    """What is held is no call, by its last character."""


class Broken(Exception):
    """A call that has begun does not go on as JSON does. `inside`: within its arguments."""

    def __init__(self, character: str, inside: bool) -> None:
        """Name the first character that does not fit."""
        super().__init__(character)
        self.character = character
        self.inside = inside


def new_call_id() -> str:
    """Return a call's id."""
    return "call_" + secrets.token_hex(12)


def space(character: str) -> Next:
    """Pass over whitespace, from `character` on."""
    while character in WHITESPACE:
        character = yield
    return character


class Scanner(ABC):
    """One choice's text. A format implements `_read`."""

    def __init__(
        self,
        names: Collection[str],
        parallel: bool = True,
        hidden: Collection[str] = (),
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Look for calls of the functions `names`; without `parallel` the calls after the first are passed over.

        hidden: tags that are special tokens of the model: where they mark no call they are no content either.
        """
        self._names = frozenset(names)
        self._parallel = parallel
        self._hidden = tuple(hidden)
        self._new_id = new_id
        self._events: list[Event] = []
        self._held: list[str] | None = None
        self._marked = False
        self._separates = False
        self._space = ""
        self._wrote = False
        self._argued = False
        self.calls = 0
        """Calls that have begun."""
        self.open = False
        """Whether the last of them is not complete."""
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text; return what it makes known."""
        for character in text:
            if self._held is not None:
                self._held.append(character)
            self._reading.send(character)
        return self._take()

    def finish(self, ending: Ending) -> list[Event]:
        """Return what was held back, the text having ended.

        The beginning of a call that the text's bound cut off is no content. A stop string cut off a call only if the
        call's opening tag is whole: of a shorter one nobody knows.
        """
        is_text = ending == "end" or (ending == "stop_string" and not self._marked)
        if self._held is not None and is_text and not self._separates:
            self._text(self._shown(self._held))
        self._held = None
        if not self.calls and self._space:
            self._events.append(Text(self._space))
        return self._take()

    @property
    def whole(self) -> bool:
        """Whether there are calls, and all that were told are complete."""
        return self.calls > 0 and not (self.open and self._told)

    @property
    def _told(self) -> bool:
        """Whether the last call is one to be told."""
        return self._parallel or self.calls == 1

    @abstractmethod
    def _read(self) -> Reading:
        """Take the text's characters, one after the other."""

    def _take(self) -> list[Event]:
        events, self._events = merged(self._events), []
        return events

    # --- Content ---
    def _text(self, text: str) -> None:
        """Add content. Whitespace beside a call counts between two texts only."""
        body = text.strip(WHITESPACE)
        if not body:
            self._space += text
            return
        start = text.index(body)
        before = self._space + text[:start]
        self._space = text[start + len(body) :]
        self._events.append(Text(before + body if self._wrote or not self.calls else body))
        self._wrote = True

    # --- Holding ---
    def _hold(self, character: str, *, marked: bool = False, separates: bool = False) -> None:
        """Hold the text from `character` on. marked: an opening tag has been seen; separates: a call has just ended."""
        self._held = [character]
        self._marked = marked
        self._separates = separates

    def _drop(self) -> None:
        self._held = None

    def _release(self) -> str:
        """Let go, as content, what is held; but not its last character, which is returned to be looked at again."""
        held = self._held or [""]
        self._held = None
        self._text(self._shown(held[:-1]))
        return held[-1]

    def _shown(self, held: list[str]) -> str:
        text = "".join(held)
        for tag in self._hidden:
            text = text.replace(tag, "")
        return text

    def _literal(self, text: str) -> Reading:
        for expected in text:
            character = yield
            if character != expected:
                raise NotACall

    # --- Calls ---
    def _start(self, name: str) -> None:
        """Begin a call: from here on it is one, whatever follows."""
        self._held = None
        self.calls += 1
        self.open = True
        self._argued = False
        self._tell(CallStarted(self.calls - 1, self._new_id(), name))

    def _argue(self, text: str) -> None:
        if text:
            self._argued = True
            self._tell(Arguments(self.calls - 1, text))

    def _end(self) -> None:
        """Complete the call; one without arguments has an empty object of them."""
        if not self._argued:
            self._argue("{}")
        self.open = False
        self._tell(CallEnded(self.calls - 1))

    def _tell(self, event: Event) -> None:
        if self._told:
            self._events.append(event)

    def _fail(self, character: str, inside: bool = False) -> NoReturn:
        raise Broken(character, inside) if self.open else NotACall

    def _call(self, known: bool = False) -> Reading:
        """Read a call's object after its opening brace. known: it is a call only of a function of the request.

        Raises NotACall or, once the call has begun, Broken.
        """
        name = ""
        early: list[str] | None = None
        character = yield from space((yield))
        while True:
            key = yield from self._key(character)
            self._marked = True
            character = yield from space((yield))
            if key == "name" and not name:
                name = yield from self._name(character, known)
                if early is not None:
                    self._start(name)
                    self._argue("".join(early))
                character = yield
            elif key in _ARGUMENTS and early is None and not self.open:
                if name and character in '{"n':
                    self._start(name)
                early = []
                yield from self._arguments(character, self._argue if self.open else early.append)
                character = yield
            elif key in _KEYS or self.open:
                character = yield from self._any(character)
            else:
                raise NotACall
            character = yield from space(character)
            if character == "}":
                break
            if character != ",":
                self._fail(character)
            character = yield from space((yield))
        if not name:
            raise NotACall
        if not self.open:
            self._start(name)
        self._end()

    def _key(self, character: str) -> Next:
        """Read a member's key and its colon."""
        key: list[str] = []
        yield from self._string(character, key.append)
        character = yield from space((yield))
        if character != ":":
            self._fail(character)
        return "".join(key)

    def _name(self, character: str, known: bool) -> Next:
        """Read a function's name, given up as soon as it can be none."""
        name = ""

        def add(piece: str) -> None:
            nonlocal name
            name += piece
            if len(name) > MAX_NAME or (known and not any(other.startswith(name) for other in self._names)):
                raise NotACall

        yield from self._string(character, add)
        if not name or (known and name not in self._names):
            raise NotACall
        return name

    def _arguments(self, character: str, sink: Sink) -> Reading:
        """Read arguments: an object, which is passed on as it is; an object within a string; or null, which is none."""
        if character == '"':
            yield from self._string(character, sink, inside=True)
        elif character == "n":
            yield from self._null()
        elif character == "{":
            yield from self._container(character, sink, inside=True)
        else:
            self._fail(character)

    def _container(self, character: str, sink: Sink, inside: bool = False) -> Reading:
        value = Container()
        try:
            while True:
                sink(value.feed(character))
                if value.done:
                    return
                character = yield
        except Malformed as error:
            self._fail(error.character, inside)

    def _null(self) -> Reading:
        for expected in "ull":
            character = yield
            if character != expected:
                self._fail(character)

    def _string(self, character: str, sink: Sink, inside: bool = False) -> Reading:
        if character != '"':
            self._fail(character)
        try:
            yield from string(sink)
        except Malformed as error:
            self._fail(error.character, inside)

    def _any(self, character: str) -> Next:
        """Pass over a value of any kind."""
        ignored: list[str] = []
        if character == '"':
            yield from self._string(character, ignored.append)
        elif character in "{[":
            yield from self._container(character, ignored.append)
        else:
            scalar = ""
            while character in SCALAR_CHARACTERS:
                scalar += character
                character = yield
            if not is_scalar(scalar):
                self._fail(character)
            return character
        return (yield)

    def _rest(self, broken: Broken) -> Reading:
        """Take the rest of the text after a call that broke."""
        character = broken.character
        while True:
            self._garble(broken, character)
            character = yield

    def _garble(self, broken: Broken, text: str) -> None:
        """Pass on what follows the point where a call broke, if that was within its arguments."""
        if broken.inside:
            self._argue(text)
