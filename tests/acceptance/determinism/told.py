"""What each choice of each request was told, to the bit, and where two tellings part."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from octavo_engine.ipc.messages import AdapterFailed, Failed, Refused, Step, ToServer
from octavo_engine.ipc.scores import read_scores, record_bytes

from .asking import Asked

Key = tuple[int, int]
"""Request and choice."""


class NotTold(RuntimeError):
    """A request was refused, or failed: the message says which and why."""


class Told(msgspec.Struct):
    """One choice. Log-probabilities as the records of `ipc.scores`."""

    tokens: list[int] = []
    finish: str = ""
    stop_reason: int = -1
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""


class Listener:
    """Takes an engine's messages in."""

    def __init__(self, first: int = 0) -> None:
        """Call request `first` 0, the next 1, and so on."""
        self._first = first
        self.told: dict[Key, Told] = {}
        self.ended: list[Key] = []

    def take(self, message: ToServer) -> None:
        """Take one message in. Raises NotTold."""
        if isinstance(message, Refused):
            raise NotTold(f"request {message.request} was refused: {message.detail}")
        if isinstance(message, Failed | AdapterFailed):
            raise NotTold(message.detail)
        for output in message.outputs if isinstance(message, Step) else ():
            key = output.request - self._first, output.choice
            if output.finish in ("error", "abort"):
                raise NotTold(f"request {key} ended with '{output.finish}': {output.detail}")
            told = self.told.setdefault(key, Told())
            told.tokens += output.tokens
            told.logprobs += output.logprobs
            told.prompt_logprobs += output.prompt_logprobs
            if output.finish:
                told.finish, told.stop_reason = output.finish, output.stop_reason
                self.ended.append(key)


def digest(told: dict[Key, Told]) -> str:
    """Name all that was told by 12 hexadecimal digits."""
    return hashlib.sha256(msgspec.msgpack.encode(sorted(told.items()))).hexdigest()[:12]


def first_difference(asked: Sequence[Asked], expected: dict[Key, Told], got: dict[Key, Told]) -> str:
    """Say where `got` parts from `expected` first, in the order of the requests; nothing if it never does."""
    for key in sorted(expected):
        if found := _difference(asked[key[0]], expected[key], got.get(key)):
            return f"request {key[0]}, choice {key[1]} ({asked[key[0]].kind}): {found}"
    return f"choices nobody asked for: {sorted(got.keys() - expected.keys())}" if got.keys() - expected.keys() else ""


def _difference(asked: Asked, expected: Told, got: Told | None) -> str:
    if got is None:
        return "nothing was told"
    submit = asked.submit
    for place, (was, now) in enumerate(zip(expected.tokens, got.tokens, strict=False)):
        if was != now:
            return f"token {place} was {was} and is {now}"
    if len(expected.tokens) != len(got.tokens):
        return f"{len(expected.tokens)} tokens became {len(got.tokens)}"
    if found := _scores("log-probability", expected.logprobs, got.logprobs, max(0, submit.sampling.logprobs)):
        return found
    scored = max(0, submit.prompt_logprobs)
    if found := _scores("prompt's log-probability", expected.prompt_logprobs, got.prompt_logprobs, scored):
        return found
    if (expected.finish, expected.stop_reason) != (got.finish, got.stop_reason):
        return f"the end was {expected.finish} ({expected.stop_reason}) and is {got.finish} ({got.stop_reason})"
    return ""


def _scores(name: str, expected: bytes, got: bytes, alternatives: int) -> str:
    if expected == got:
        return ""
    size = record_bytes(alternatives)
    if len(expected) != len(got):
        return f"{len(expected) // size} records of the {name} became {len(got) // size}"
    place = next(at for at in range(0, len(expected), size) if expected[at : at + size] != got[at : at + size])
    (was,), (now,) = (read_scores(records[place : place + size], alternatives) for records in (expected, got))
    return f"{name} {place // size} was {was} and is {now}"
