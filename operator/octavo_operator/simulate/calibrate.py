"""What one simulated pod can do: its block pool and the time of a step, read from `octavo bench` or a scripted URI.

    step seconds = step + tokens computed / prefill rate + context_token x tokens of context that are read

That is what a scripted engine takes by construction, and what a memory-bound decode step with compute-bound prefill
takes in practice (operators.md 2.11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from octavo_engine import contract


@dataclass(frozen=True, slots=True)
class Calibration:
    """One pod. Sizes in blocks, tokens and sequences; times in seconds.

    The defaults are `scripted://?prefill=8000&step=20ms&blocks=1024`: a small accelerator serving a model of a few
    billion parameters. `watermark` is the share of the pool that an admission leaves free while something runs.
    """

    blocks: int = 1024
    block_size: int = contract.BLOCK_SIZE
    step_seconds: float = 0.020
    prefill_tokens_per_second: float = 8000.0
    context_token_seconds: float = 0.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark: float = 0.01

    def __post_init__(self) -> None:
        if min(self.blocks, self.block_size, self.max_num_seqs, self.max_num_batched_tokens) < 1:
            raise ValueError("blocks, block size, sequences and the token budget of a pod must each be at least 1")
        if self.step_seconds < 0 or self.prefill_tokens_per_second <= 0 or self.context_token_seconds < 0:
            raise ValueError("a pod's step time must be 0 or more and its prefill rate above 0")

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)


_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def from_scripted(uri: str) -> Calibration:
    """Return the calibration of `scripted://?prefill=…&step=…&blocks=…`. Raises ValueError with the remedy."""
    parts = urlsplit(uri)
    if parts.scheme != "scripted":
        raise ValueError(f"{uri!r} is not a scripted model: write scripted://?prefill=8000&step=20ms&blocks=512")
    found = Calibration(blocks=512)
    for key, text in parse_qsl(parts.query):
        try:
            if key == "prefill":
                found = replace(found, prefill_tokens_per_second=float(text))
            elif key == "step":
                found = replace(found, step_seconds=_seconds(text))
            elif key == "blocks":
                found = replace(found, blocks=int(text))
            elif key == "block_size":
                found = replace(found, block_size=int(text))
        except ValueError as error:
            raise ValueError(f"{key}={text!r} in {uri!r} is not usable: {error}") from None
    return found


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s)", text)
    if match is None:
        raise ValueError("write a time such as 20ms")
    return float(match[1]) * _SECONDS[match[2]]


def from_bench(paths: Sequence[Path], base: Calibration) -> Calibration:
    """Return `base` with the speeds of `octavo bench latency --json` reports.

    The prefill rate is the median over the reports. One report gives the step time; reports of different prompt
    lengths also give the time per token of context, by least squares. Raises ValueError for what is no such report.
    """
    points = [_point(path, base.max_num_batched_tokens) for path in paths]
    rates = sorted(rate for _, _, rate in points)
    rate = rates[len(rates) // 2]
    # A decode step of one stream computes one token; what is left is the step and what it reads.
    contexts = [context for context, _, _ in points]
    steps = [max(0.0, seconds - 1 / rate) for _, seconds, _ in points]
    slope = _slope(contexts, steps)
    mean_context, mean_step = sum(contexts) / len(contexts), sum(steps) / len(steps)
    return replace(
        base,
        prefill_tokens_per_second=rate,
        context_token_seconds=slope,
        step_seconds=max(0.0, mean_step - slope * mean_context),
    )


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if spread == 0:
        return 0.0
    return max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread)


def _point(path: Path, step_tokens: int) -> tuple[float, float, float]:
    """Return (context in tokens, seconds a decode step, prefill tokens a second) of one report.

    A prefill takes its steps beside its tokens: what a decode step takes without any is taken off, once for each
    `step_tokens` of it.
    """
    try:
        figures: Mapping[str, Any] = json.loads(path.read_text())["figures"]["latency"]
        context = float(figures["prompt"]) + float(figures["output"]) / 2
        step, tokens = 1 / float(figures["decode_rate"]["median"]), int(figures["prefill_tokens"])
        whole = tokens / float(figures["prefill_rate"]["median"])
        steps = -(-tokens // step_tokens)
        left = whole - steps * step
        # A prefill that takes no longer than its steps' overhead says nothing but that it is quick.
        return context, step, (tokens - steps) / left if left > 0 and tokens > steps else tokens / whole
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        raise ValueError(
            f"{path} is no report of one stream: make one with `octavo bench latency MODEL --json {path}`"
        ) from None
