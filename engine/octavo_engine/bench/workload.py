"""What the benches ask for: prompts as random token ids, output lengths, arrival times. Equal seeds, equal lists.

The lists are those that other engines' published figures of this kind were taken with: the order of the draws is part
of the definition and never changes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

FIRST_TOKEN: Final = 100
"""Ids below are special tokens in most vocabularies."""
VOCABULARY: Final = 49_000
MOONCAKE_BLOCK: Final = 512
"""Tokens that one of a Mooncake trace's hash ids stands for."""


class Item(NamedTuple):
    """One request: prompt token ids, output tokens (never fewer), and seconds after the first one's arrival."""

    prompt: tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0


class WorkloadError(ValueError):
    """The workload cannot be made; the message is one sentence with the remedy."""


def mixed(n: int = 64, seed: int = 0, vocab: int = VOCABULARY) -> list[Item]:
    """Return widely varying lengths: prompts of 16 to 256 tokens, outputs of 8 to 256."""
    draw = random.Random(seed)
    items = []
    for _ in range(n):
        prompt, output = draw.randint(16, 256), draw.randint(8, 256)
        items.append(Item(_tokens(draw, prompt, vocab), output))
    return items


def skewed(n: int = 256, seed: int = 0, vocab: int = VOCABULARY) -> list[Item]:
    """Return lengths as static batching meets them: prompts of 16 to 64, outputs of 8 to 32, one in ten 256 to 512."""
    draw = random.Random(seed)
    items = []
    for _ in range(n):
        output = draw.randint(256, 512) if draw.random() < 0.1 else draw.randint(8, 32)
        items.append(Item(_tokens(draw, draw.randint(16, 64), vocab), output))
    return items


def fixed(n: int, prompt: int, output: int, seed: int = 0, vocab: int = VOCABULARY) -> list[Item]:
    """Return n requests of the same lengths."""
    draw = random.Random(seed)
    return [Item(_tokens(draw, prompt, vocab), output) for _ in range(n)]


def shared_prefix(
    n: int = 64, seed: int = 0, vocab: int = VOCABULARY, system: int = 512, output: int = 32
) -> list[Item]:
    """Return n requests that begin with the same `system` tokens, go on with 16 to 64 of their own."""
    draw = random.Random(seed)
    prefix = _tokens(draw, system, vocab)
    return [Item(prefix + _tokens(draw, draw.randint(16, 64), vocab), output) for _ in range(n)]


def read_trace(
    path: Path,
    *,
    limit: int = 0,
    seconds: float = 0.0,
    longest: int = 0,
    seed: int = 0,
    vocab: int = VOCABULARY,
) -> list[Item]:
    """Read recorded arrivals and lengths: Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens) or Mooncake's JSONL.

    At most `limit` requests (0: all) and those of the first `seconds` (0: all), in the order of arrival; a trace that
    is cut is one in that order already. What is longer than `longest` tokens (0: nothing is) is
    cut: the output to half of it, the prompt to the rest. Mooncake's equal hash ids give equal tokens, so that shared
    prefixes stay shared. Raises WorkloadError.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            head = stream.readline()
            stream.seek(0)
            rows = _mooncake(stream, vocab, seed) if head.lstrip().startswith("{") else _azure(stream, vocab, seed)
            items = sorted(_cut(rows, limit, seconds, longest), key=lambda item: item.arrival)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WorkloadError(
            f"{path} is no trace ({type(error).__name__}: {error}): give a CSV with TIMESTAMP, ContextTokens and "
            "GeneratedTokens, or JSON lines with timestamp, input_length, output_length and hash_ids."
        ) from error
    if not items:
        raise WorkloadError(f"{path} holds no request.")
    first = items[0].arrival
    return [item._replace(arrival=item.arrival - first) for item in items]


def poisson(items: Iterable[Item], rate: float, seed: int = 1) -> list[Item]:
    """Return the items with Poisson arrivals of `rate` a second, the first at once."""
    draw, clock, timed = random.Random(seed), 0.0, []
    for item in items:
        timed.append(item._replace(arrival=clock))
        clock += draw.expovariate(rate)
    return timed


def rescale(items: Sequence[Item], rate: float) -> list[Item]:
    """Return the items with their gaps stretched so that they come at `rate` a second on average."""
    last = max(item.arrival for item in items)
    factor = (len(items) - 1) / rate / last if last else 0.0
    return [item._replace(arrival=item.arrival * factor) for item in items]


def digest(items: Iterable[Item]) -> str:
    """Return 16 hexadecimal digits that name prompts and lengths (not arrivals)."""
    state = hashlib.sha256()
    for item in items:
        state.update(json.dumps([item.prompt, item.max_tokens]).encode())
    return state.hexdigest()[:16]


def to_json(items: Sequence[Item]) -> bytes:
    """Return the items for another process."""
    return msgspec.json.encode(items)


def from_json(data: bytes) -> list[Item]:
    """Return the items of `to_json`."""
    return msgspec.json.decode(data, type=list[Item])


def _tokens(draw: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    # A vocabulary that ends below them has special tokens too, but no others to draw from.
    first = FIRST_TOKEN if vocab >= FIRST_TOKEN else 0
    return tuple(draw.randint(first, vocab) for _ in range(count))


def _cut(rows: Iterable[Item], limit: int, seconds: float, longest: int) -> Iterator[Item]:
    end = math.inf
    for index, item in enumerate(rows):
        if not index and seconds:
            end = item.arrival + seconds
        if (limit and index == limit) or item.arrival > end:
            return
        if longest and len(item.prompt) + item.max_tokens > longest:
            output = min(item.max_tokens, max(1, longest // 2))
            item = item._replace(prompt=item.prompt[: longest - output], max_tokens=output)
        yield item


def _azure(lines: Iterable[str], vocab: int, seed: int) -> Iterator[Item]:
    draw = random.Random(seed)
    for row in csv.DictReader(lines):
        # Seven decimals: one more than datetime reads.
        when = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        prompt = _tokens(draw, max(1, int(row["ContextTokens"])), vocab)
        yield Item(prompt, max(1, int(row["GeneratedTokens"])), when)


def _mooncake(lines: Iterable[str], vocab: int, seed: int) -> Iterator[Item]:
    for line in lines:
        row = json.loads(line)
        prompt: list[int] = []
        for block in row["hash_ids"]:
            prompt += _tokens(random.Random(f"{seed} {block}"), MOONCAKE_BLOCK, vocab)
        length = max(1, int(row["input_length"]))
        yield Item(tuple(prompt[:length]), max(1, int(row["output_length"])), row["timestamp"] / 1000)
