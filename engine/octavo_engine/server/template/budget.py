"""What one rendering may cost: wall-clock time and characters."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, TypeVar

MAX_SECONDS: Final = 2.0
MAX_CHARACTERS: Final = 64 * 1024 * 1024
"""Twice the largest request body: templates add headers, and JSON-encode what they repeat."""
MAX_NUMBER: Final = 1_000_000
"""Largest number that may say how often or how wide something is written."""
_MAX_BITS: Final = 4096
_WIDTH: Final = re.compile(r"[0-9]{7,}|\*")
_SIZED: Final = (str, bytes, list, tuple)
_T = TypeVar("_T")


class BudgetExceeded(Exception):
    """The rendering took too long or became too large. The message says which."""


class Budget:
    """One rendering's limits, and the moment that `strftime_now` tells in it."""

    __slots__ = ("_deadline", "_seconds", "characters", "now")

    def __init__(self, seconds: float = MAX_SECONDS, characters: int = MAX_CHARACTERS) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.characters = characters
        self.now = datetime.now()

    def tick(self) -> None:
        """Raise `BudgetExceeded` once the time is up."""
        if time.monotonic() > self._deadline:
            raise BudgetExceeded(f"it ran longer than {self._seconds:g} s")

    def check_size(self, characters: int) -> None:
        """Raise `BudgetExceeded` for a text of so many characters."""
        if characters > self.characters:
            raise BudgetExceeded(f"it wrote more than {self.characters} characters")

    def check_length(self, value: Any, times: int = 1) -> None:
        """Raise `BudgetExceeded` if `times` times `value`, a text or a list, would be too large."""
        length = len(value) * max(times, 0)
        if isinstance(value, (str, bytes)):
            self.check_size(length)
        elif length > MAX_NUMBER:
            raise BudgetExceeded(f"it made a list of more than {MAX_NUMBER} values")


_CURRENT: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Charge what runs inside to `budget`."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Budget:
    """Return the budget of the rendering that runs now."""
    budget = _CURRENT.get(None)
    # Jinja folds constants while it compiles: outside any rendering, bounded all the same.
    return Budget() if budget is None else budget


def join(pieces: Iterable[str]) -> str:
    """Return the pieces joined, stopping as soon as they are too many."""
    budget = current()
    kept = []
    total = 0
    for piece in pieces:
        total += len(piece)
        budget.check_size(total)
        budget.tick()
        kept.append(piece)
    return "".join(kept)


def check_result(value: _T) -> _T:
    """Return `value` unless it is a text or a list that is too large."""
    if isinstance(value, _SIZED):
        current().check_length(value)
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large, before it is computed."""
    if operator == "*":
        if isinstance(left, _SIZED) and isinstance(right, int):
            current().check_length(left, right)
        elif isinstance(right, _SIZED) and isinstance(left, int):
            current().check_length(right, left)
        elif isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        _check_format(left)


def check_method(function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Refuse a call of a text's method whose result would be too large (`center`, `replace`, `join`, `format` …)."""
    function = getattr(function, "__wrapped__", function)  # the sandbox's own guard around `str.format`
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, (str, bytes)):
        return
    check_numbers(arguments, keywords)
    name = getattr(function, "__name__", "")
    if name == "replace" and len(arguments) >= 2 and isinstance(arguments[1], str):
        old = max(1, len(arguments[0])) if isinstance(arguments[0], str) else 1
        current().check_size((len(owner) // old + 1) * len(arguments[1]))
    elif name == "join" and arguments and isinstance(arguments[0], (list, tuple)):
        check_joined(arguments[0], owner)
    elif name in ("format", "format_map") and isinstance(owner, str):
        _check_format(owner)


def check_numbers(arguments: Iterable[Any], keywords: Mapping[str, Any]) -> None:
    """Refuse a width, a count or a size beyond `MAX_NUMBER`."""
    for value in (*arguments, *keywords.values()):
        if isinstance(value, int) and value > MAX_NUMBER:
            raise BudgetExceeded(f"it asked for a text {value} wide")


def check_joined(items: Iterable[Any], separator: str | bytes) -> None:
    """Refuse to join what would be too large."""
    current().check_size(sum(len(separator) + (len(item) if isinstance(item, str) else 1) for item in items))


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise BudgetExceeded(f"it computed a number of {bits} bits")


def _check_format(form: str) -> None:
    if _WIDTH.search(form):
        raise BudgetExceeded("it used a format with an open or very large width")
