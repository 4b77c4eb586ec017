"""The machinery of the field tables: what a field is, how a value is read, how a table is applied to a body."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from enum import Enum
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, TypeVar

from octavo_engine.server.errors import ApiError, invalid


class Treatment(Enum):
    """What becomes of a field that a request carries."""

    HONOURED = "honoured"
    REFUSED = "refused"
    IGNORED = "ignored"


Reader = Callable[[Any], Any]
"""Takes a JSON value and returns what it means, or raises Unreadable."""

Schema = dict[str, Any]
"""A JSON Schema (2020-12)."""

Value = TypeVar("Value")


class Unreadable(Exception):
    """A value breaks its field's rule: `message` continues the sentence "'name' …"; `path` points inside the value."""

    def __init__(self, message: str, path: str = "") -> None:
        """Make the refusal of one value."""
        super().__init__(message)
        self.message = message
        self.path = path


class Described(Generic[Value]):
    """A reader that says in JSON Schema what it may take: nothing else, and not all of that, for schemas say little."""

    def __init__(self, read: Callable[[Any], Value], schema: Schema) -> None:
        """Read by `read`."""
        update_wrapper(self, read)
        self._read = read
        self.schema = schema

    def __call__(self, value: Any) -> Value:
        """Return what the value means. Raises Unreadable."""
        return self._read(value)


def described(**schema: Any) -> Callable[[Callable[[Any], Value]], Described[Value]]:
    """Return a decorator for a reader; its arguments are the schema's keywords."""
    return lambda read: Described(read, schema)


def schema_of(read: Reader) -> Schema:
    """Return what a reader says it takes; `{}`, which is anything, if it does not say."""
    return read.schema if isinstance(read, Described) else {}


class Field(NamedTuple):
    """One request field. `no_op`: for a refused field, the values that ask for nothing. `why`: shown or documented."""

    name: str
    treatment: Treatment
    read: Reader = lambda value: value
    default: Any = None
    no_op: tuple[Any, ...] = ()
    why: str = ""


def honoured(name: str, read: Reader, default: Any = None) -> Field:
    """Return a field whose value changes what is done."""
    return Field(name, Treatment.HONOURED, read, default)


def refused(name: str, *no_op: Any, why: str = "is not supported yet") -> Field:
    """Return a field that is answered with 400, unless it is null or one of `no_op`."""
    return Field(name, Treatment.REFUSED, no_op=no_op, why=why)


def ignored(name: str, why: str) -> Field:
    """Return a field whose value changes nothing here, harmlessly; `why` says so in the documentation."""
    return Field(name, Treatment.IGNORED, why=why)


Table = dict[str, Field]


def table(*fields: Field) -> Table:
    """Return the table of an endpoint, by field name."""
    return {field.name: field for field in fields}


def _same(value: Any, no_op: Any) -> bool:
    """Compare as JSON does: `true` is not 1. A member that is null counts as absent, as a field does."""
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    return type(value) is type(no_op) and bool(value == no_op)


def read_fields(fields: Table, body: dict[str, Any]) -> dict[str, Any]:
    """Return the honoured fields' values, defaults filled in; null counts as absent, unknown names are tolerated.

    Raises ApiError (400, `param` names the field) on the first field that is refused or cannot be read.
    """
    values = {name: field.default for name, field in fields.items() if field.treatment is Treatment.HONOURED}
    for name, value in body.items():
        field = fields.get(name)
        if field is None or value is None or field.treatment is Treatment.IGNORED:
            continue
        if field.treatment is Treatment.REFUSED:
            if not any(_same(value, no_op) for no_op in field.no_op):
                raise invalid(f"'{name}' {field.why}.", param=name, code="unsupported_parameter")
            continue
        values[name] = read_value(name, field.read, value)
    return values


def read_value(name: str, read: Reader, value: Any) -> Any:
    """Read one value; an Unreadable becomes the ApiError that names the field."""
    try:
        return read(value)
    except Unreadable as error:
        raise unreadable(name, error) from None


def unreadable(name: str, error: Unreadable) -> ApiError:
    """Return the 400 of a value that breaks its field's rule."""
    where = name + error.path
    return invalid(f"'{where}' {error.message}.", param=where, code="invalid_value")


NOT_ASKED: Schema = {"type": "null"}
"""Of the members that an object of ours does not have."""


def check_members(value: dict[str, Any], known: Collection[str], path: str = "") -> None:
    """Raise Unreadable for a member of one of our own objects that is not `known`: whoever sends it wants something."""
    for name, item in value.items():
        if item is not None and name not in known:
            raise Unreadable("is not supported here", f"{path}.{name}")


# --- Readers ----------------------------------------------------------------------------------------------------
@described(type="boolean")
def boolean(value: Any) -> bool:
    """Read true or false, and nothing that merely looks like it."""
    if type(value) is not bool:
        raise Unreadable("must be true or false")
    return value


@described(type="string")
def string(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise Unreadable("must be a string")
    return value


def integer(low: int, high: int) -> Described[int]:
    """Return a reader of integers in low … high; `1.0` and `"7"` are not integers."""

    @described(type="integer", minimum=low, maximum=high)
    def read(value: Any) -> int:
        if type(value) is not int:
            raise Unreadable("must be an integer")
        if not low <= value <= high:
            raise Unreadable(f"must be between {low} and {high}")
        return value

    return read


def number(low: float, high: float, above: bool = False) -> Described[float]:
    """Return a reader of finite numbers in low … high (low itself excluded if `above`)."""

    @described(type="number", maximum=high, **{"exclusiveMinimum" if above else "minimum": low})
    def read(value: Any) -> float:
        if type(value) not in (int, float):
            raise Unreadable("must be a number")
        bound = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        # An integer too large for a float is out of every range here, so compare before converting.
        if not low <= value <= high or (above and value == low) or not math.isfinite(value):
            raise Unreadable(f"must be {bound}")
        return float(value)

    return read


def list_of(read_item: Reader, low: int, high: int) -> Described[list[Any]]:
    """Return a reader of lists of low … high items."""

    @described(type="array", items=schema_of(read_item), minItems=low, maxItems=high)
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Unreadable("must be a list")
        if not low <= len(value) <= high:
            raise Unreadable(f"must have between {low} and {high} items")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(read_item(item))
            except Unreadable as error:
                raise Unreadable(error.message, f"[{index}]{error.path}") from None
        return items

    return read
