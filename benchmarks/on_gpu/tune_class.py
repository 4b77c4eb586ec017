"""One class of shapes whose launch parameters are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

Runs = Sequence[Callable[[], Tensor]]
"""The same work at several sizes that share a class; each gives its result."""


class Class(NamedTuple):
    """A class of shapes. axes: the values to try of each parameter. build: what to run, with given parameters."""

    kernel: str
    shape: Mapping[str, int | str]
    used: Any
    axes: Mapping[str, Sequence[int]]
    build: Callable[[Any], Runs]

    def sentence(self) -> str:
        """Name it."""
        return f"{self.kernel} {', '.join(f'{name} {value}' for name, value in self.shape.items())}"


def chain(*parts: Iterator[Class]) -> Iterator[Class]:
    """Yield one class of each part in turn, so that no kernel is left out where time is short."""
    waiting = list(parts)
    while waiting:
        for part in list(waiting):
            found = next(part, None)
            if found is None:
                waiting.remove(part)
            else:
                yield found
