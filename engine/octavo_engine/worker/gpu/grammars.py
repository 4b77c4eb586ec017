"""What the runner asks of grammars, whoever compiles and follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import RowResult


class Grammar(Protocol):
    """One sequence's place in its grammar."""

    complete: bool
    """Whether nothing may follow."""

    def resume(self, tokens: Sequence[int]) -> None:
        """Go to where the tokens, all that the sequence has generated, lead."""
        ...


class Masks(NamedTuple):
    """What a step's rows may sample. rows: int32 [R], which mask each has, -1 for none; masks: int32
    [M, ceil(V / 32)], bits of the tokens that are allowed, the lowest first.
    """

    rows: NDArray[np.int32]
    masks: NDArray[np.int32]


class Grammars(Protocol):
    """What grammars allow, and how they follow what was sampled. A row without one has None."""

    def masks(self, grammars: Sequence[Any]) -> Masks:
        """Return what the rows' grammars allow next."""
        ...

    def follow(self, grammars: Sequence[Any], results: Sequence[RowResult]) -> list[RowResult]:
        """Let them follow; what a grammar's end came before never happened."""
        ...
