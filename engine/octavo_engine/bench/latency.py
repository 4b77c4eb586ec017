"""One stream alone: time to first token, decode, prefill, and how near the machine's limits they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from octavo_engine.bench.harness import Harness, RunResult, Tell
from octavo_engine.bench.latency_table import latency_table
from octavo_engine.bench.limits import Limits, Work
from octavo_engine.bench.perplexity import Beside
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import Spread, percentiles, repetitions, spread
from octavo_engine.bench.workload import fixed

PREFILL_OUTPUT: Final = 2
"""One token more than the first, so that the run has an end of its own."""


class Latency(msgspec.Struct, frozen=True):
    """Rates in tokens a second, times in seconds, shares from 0 to 1. Each spread has a value per repetition.

    `itl` is over the gaps of all repetitions together. What the backend does not count is None: null as JSON.
    """

    prompt: int
    output: int
    prefill_tokens: int
    decode_rate: Spread
    ttft: Spread
    itl: dict[str, float]
    prefill_rate: Spread
    python_share: Spread | None = None
    bandwidth_share: Spread | None = None
    """(packed bytes + KV read) a decode step ÷ wall ÷ reading speed."""
    prefill_compute_share: Spread | None = None


class Streams(msgspec.Struct, frozen=True):
    """The raw runs."""

    decode: list[RunResult]
    prefill: list[RunResult]


def measure(harness: Harness, prompt: int, output: int, prefill: int, repeat: int, tell: Tell | None = None) -> Streams:
    """Run one stream `repeat` times, decode and prefill by turns, after one of each that warms up."""
    decode, whole = [], []
    for repetition in range(-1, repeat):
        seed = repetition + 1
        one = harness.run(fixed(1, prompt, output, seed, harness.vocab))
        two = harness.run(fixed(1, prefill, PREFILL_OUTPUT, seed, harness.vocab))
        if repetition >= 0:
            decode.append(one)
            whole.append(two)
        if tell is not None:
            tell(repetition + 1, repeat)
    return Streams(decode, whole)


def summarize(
    streams: Streams, prompt: int, output: int, prefill: int, work: Work | None = None, limits: Limits | None = None
) -> Latency:
    """Return the figures of runs."""
    rates = [(run.output_tokens - 1) / sum(run.itl) for run in streams.decode]
    prefills = [prefill / run.ttft[0] for run in streams.prefill]
    shares = [run.python_share for run in streams.decode if run.python_share is not None]
    bandwidth: Sequence[float] = []
    compute: Sequence[float] = []
    if work is not None and limits is not None:
        context = prompt + output / 2
        read = work.packed_bytes + work.kv_bytes_per_token * context
        bandwidth = [rate * read / limits.bytes_per_second for rate in rates] if work.packed_bytes else []
        one = work.multiply_adds(prefill, 1)
        compute = [rate / prefill * one / limits.multiply_adds_per_second for rate in prefills]
    return Latency(
        prompt=prompt,
        output=output,
        prefill_tokens=prefill,
        decode_rate=spread(rates),
        ttft=spread([run.ttft[0] for run in streams.decode]),
        itl=percentiles([gap for run in streams.decode for gap in run.itl]),
        prefill_rate=spread(prefills),
        python_share=spread(shares) if shares else None,
        bandwidth_share=spread(bandwidth) if bandwidth else None,
        prefill_compute_share=spread(compute) if compute else None,
    )


def tables(found: Latency, limits: Limits | None, perplexity: Beside | None) -> list[Table]:
    """Return the figures as tables."""
    rows = [
        ("decode, tok/s", str(found.decode_rate)),
        (f"prefill of {found.prefill_tokens}, tok/s", str(found.prefill_rate)),
        (f"TTFT of {found.prompt} tokens, ms", str(found.ttft.scaled(1e3))),
    ]
    for name, share in (
        ("Python's share of the loop", found.python_share),
        ("share of the reading speed, decode", found.bandwidth_share),
        (f"share of the compute peak, prefill of {found.prefill_tokens}", found.prefill_compute_share),
    ):
        if share is not None:
            rows.append((name, f"{share.median:.1%}"))
    if perplexity is not None:
        rows.append(perplexity.row())
    note = perplexity.note if perplexity else ""
    if limits is not None:
        note += " " if note else ""
        note += (
            f"limits: {limits.kind} {limits.multiply_adds_per_second * 2e-9:,.0f} GOP/s, "
            f"reading {limits.bytes_per_second / 1e9:.1f} GB/s"
        )
    title = f"one stream, {repetitions(found.decode_rate)}"
    latencies = latency_table("all repetitions together", {"ITL": found.itl})
    return [Table(title, ("figure", "median (lowest–highest)"), rows, note), latencies]
