"""What is said while a comparison goes on, and who was left out of it."""

from __future__ import annotations

from typing import Final

import msgspec

from octavo_engine.bench.peers.heartbeat import Say
from octavo_engine.worker.sizing import StartError

OWN: Final = "octavo"
"""What our own contenders' names and our server's begin with."""

FAILURES: Final = (RuntimeError, ValueError, OSError, MemoryError, StartError)
"""What one contender may fail with, ours or a peer's: it falls out, and the others' figures stay."""


class LeftOut(msgspec.Struct, frozen=True):
    """One that has no figures, or not all. `of` says which, "" if it is all of them; `why` is a sentence."""

    name: str
    title: str
    of: str
    why: str

    @property
    def sentence(self) -> str:
        """Return it for a person."""
        return f"{self.title} is left out{self.of and ' '}{self.of}: {self.why}"


class Notes:
    """Takes what is to be said, and keeps who was left out."""

    def __init__(self, say: Say) -> None:
        """Begin with nobody left out."""
        self.say = say
        self.left_out: list[LeftOut] = []

    def leave_out(self, name: str, title: str, why: object, of: str = "") -> None:
        """Say at once and keep that somebody has no figures, or none of `of`."""
        left = LeftOut(name, title, of, str(why) or type(why).__name__)
        self.left_out.append(left)
        self.say(left.sentence)

    @property
    def own_failed(self) -> bool:
        """Whether figures of our own are missing: the comparison failed, whatever the peers gave."""
        return any(left.name.partition(":")[0] == OWN for left in self.left_out)
