"""Traces of requests: what a fleet is asked, and when. Loaders of the public schemas (operators.md 2.12).

`load` tells the schema by the file itself: Azure 2023 and 2024 (`TIMESTAMP,ContextTokens,GeneratedTokens`), BurstGPT
(`Timestamp,Model,Request tokens,…`), Mooncake (JSON lines with `hash_ids` of 512-token blocks).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from .pool import Digest

MOONCAKE_BLOCK: Final = 512
BURST_GPT_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Request(NamedTuple):
    """One request. `at`: seconds since the trace's beginning. Lengths in tokens, each at least 1.

    `hashes` names the blocks of the prompt, each by all of its prefix; empty: nobody shares them.
    """

    at: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival. `hash_block`: tokens of a block of `hashes`. `seconds`: its length."""

    name: str
    requests: tuple[Request, ...]
    seconds: float
    hash_block: int = MOONCAKE_BLOCK

    def digests(self, request: Request, block_size: int) -> tuple[Digest, ...]:
        """Return the names of the request's full blocks of `block_size` tokens, which must divide `hash_block`."""
        if not request.hashes:
            return ()
        full = request.prompt // block_size
        if block_size == self.hash_block:
            return request.hashes[:full]
        parts = self.hash_block // block_size
        return tuple(name * parts + part for name in request.hashes for part in range(parts))[:full]

    def checked_block_size(self, block_size: int) -> int:
        """Return `block_size`. Raises ValueError if the trace's prefixes cannot be cut into such blocks."""
        if any(request.hashes for request in self.requests) and self.hash_block % block_size:
            raise ValueError(
                f"{self.name} names blocks of {self.hash_block} tokens, which pods with blocks of {block_size} tokens "
                f"cannot share: take a block size that divides {self.hash_block}"
            )
        return block_size

    def cut(self, seconds: float) -> Trace:
        """Return the first `seconds` of the trace."""
        kept = tuple(request for request in self.requests if request.at < seconds)
        return Trace(self.name, kept, min(self.seconds, seconds), self.hash_block)

    def scaled(self, factor: int) -> Trace:
        """Return every request `factor` times: times the load, with the same bursts."""
        kept = tuple(request for request in self.requests for _ in range(factor))
        return Trace(self.name, kept, self.seconds, self.hash_block)


class TraceError(ValueError):
    """The file is no trace that is known here; the message says what to do."""


def load(path: Path) -> Trace:
    """Return the trace in `path`. Raises TraceError with the line at fault."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            requests = sorted(_read(path, first, file), key=lambda request: request.at)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not text: unpack it first") from None
    if not requests:
        raise TraceError(f"{path} holds no request")
    start = requests[0].at
    moved = tuple(request._replace(at=request.at - start) for request in requests)
    # The last arrival closes the trace: what comes after it, nobody recorded.
    return Trace(path.stem, moved, max(1.0, math.ceil(moved[-1].at)))


def _read(path: Path, first: str, lines: Iterable[str]) -> Iterator[Request]:
    if first.lstrip().startswith("{"):
        return _mooncake(path, lines)
    columns = {column.strip().strip('"') for column in first.split(",")}
    if columns.issuperset(AZURE_COLUMNS):
        return _rows(path, lines, AZURE_COLUMNS, _instant)
    if columns.issuperset(BURST_GPT_COLUMNS):
        return _rows(path, lines, BURST_GPT_COLUMNS, float)
    raise TraceError(
        f"{path} is none of the known traces: it takes the columns {', '.join(AZURE_COLUMNS)} (Azure) or "
        f"{', '.join(BURST_GPT_COLUMNS)} (BurstGPT), or JSON lines with timestamp, input_length, output_length and "
        "hash_ids (Mooncake)"
    )


def _instant(text: str) -> float:
    """Return Unix seconds; both Azure traces write seven decimals, the later one a zone as well."""
    moment = text.strip().replace(" ", "T", 1)
    head, dot, rest = moment.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if dot else ""
    return datetime.fromisoformat(f"{head}{zone or ('' if '+' in head else '+00:00')}").timestamp() + (
        float(f"0.{digits}") if digits else 0.0
    )


def _rows(path: Path, lines: Iterable[str], columns: tuple[str, str, str], time_of: Any) -> Iterator[Request]:
    time, prompt, output = columns
    for row in (reader := csv.DictReader(lines, skipinitialspace=True)):
        try:
            tokens = int(float(row[prompt])), int(float(row[output]))
            at = time_of(row[time])
        except (KeyError, TypeError, ValueError):
            raise TraceError(f"line {reader.line_num} of {path} is not a request: {row}") from None
        # BurstGPT notes requests that failed as answers of no token.
        if tokens[0] > 0 and tokens[1] > 0:
            yield Request(at, *tokens)


def _mooncake(path: Path, lines: Iterable[str]) -> Iterator[Request]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            hashes = tuple(map(int, row.get("hash_ids", ())))
            request = Request(row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), hashes)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TraceError(f"line {number} of {path} is no request in Mooncake's format: {line[:80]!r}") from None
        if request.prompt > 0 and request.output > 0:
            yield request
