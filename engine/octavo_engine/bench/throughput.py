"""How many tokens a second: all requests at once, in process, or through the server by clients of another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from octavo_engine.bench.harness import Harness, RunResult, Tell
from octavo_engine.bench.limits import Limits, Work
from octavo_engine.bench.load import Target, drive
from octavo_engine.bench.own_server import OwnServer
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import Spread, number, percentiles, spread
from octavo_engine.bench.workload import Item, digest

Workload = Callable[[int], list[Item]]
"""The items of a repetition: the seed is the repetition's number, as the published figures were taken."""


class Throughput(msgspec.Struct, frozen=True):
    """Figures of repeated runs in process. Rates in tokens a second, times in seconds."""

    workload: list[str]
    """The digest of each repetition's items."""
    outputs: list[str]
    """The digest of each repetition's generated tokens: equal ones of two configurations are equal outputs."""
    requests: int
    prompt_tokens: int
    output_tokens: int
    total_rate: Spread
    output_rate: Spread
    ttft: dict[str, float]
    itl: dict[str, float]
    kv_utilization: float
    in_flight: float
    peak_blocks: int
    preemptions: int
    steps: int
    python_share: Spread | None = None
    compute_share: Spread | None = None


class OverHTTP(msgspec.Struct, frozen=True):
    """The same through `octavo serve`. CPU in shares of one core's wall time, by process."""

    total_rate: Spread
    output_rate: Spread
    ttft: dict[str, float]
    itl: dict[str, float]
    health: dict[str, float]
    failed: int
    cpu: dict[str, float]
    python_share: float | None = None
    """Of the engine loop's busy time, the API process attached."""
    ratio: float = 0.0
    """Of the figure in process."""


def in_process(
    harness: Harness, workload: Workload, repeat: int, tell: Callable[[int], Tell | None], **changes: Any
) -> list[tuple[list[Item], RunResult]]:
    """Run `repeat` repetitions after a short one that warms up."""
    harness.run(workload(0)[:4], **changes)
    runs = []
    for repetition in range(repeat):
        items = workload(repetition)
        runs.append((items, harness.run(items, tell(repetition), **changes)))
    return runs


def summarize(
    runs: Sequence[tuple[list[Item], RunResult]], work: Work | None = None, limits: Limits | None = None
) -> Throughput:
    """Return the figures of runs."""
    results = [run for _, run in runs]
    shares = [run.python_share for run in results if run.python_share is not None]
    computed = [compute_share(run, work, limits) for run in results] if work and limits else []
    return Throughput(
        workload=[digest(items) for items, _ in runs],
        outputs=[run.digest for run in results],
        requests=len(runs[0][0]),
        prompt_tokens=sum(run.prompt_tokens for run in results),
        output_tokens=sum(run.output_tokens for run in results),
        total_rate=spread([run.total_rate for run in results]),
        output_rate=spread([run.output_rate for run in results]),
        ttft=percentiles([value for run in results for value in run.ttft]),
        itl=percentiles([value for run in results for value in run.itl]),
        kv_utilization=spread([run.observed.kv_utilization for run in results]).median,
        in_flight=spread([run.observed.in_flight for run in results]).median,
        peak_blocks=max(run.observed.peak_blocks for run in results),
        preemptions=sum(run.snapshot.preemptions for run in results),
        steps=sum(run.observed.steps for run in results),
        python_share=spread(shares) if shares else None,
        compute_share=spread(computed) if computed else None,
    )


def compute_share(run: RunResult, work: Work, limits: Limits) -> float:
    """Return the multiply-adds of the weight products ÷ wall ÷ the machine's peak."""
    tokens = run.observed.tokens + run.observed.padding
    return work.multiply_adds(tokens, run.output_tokens) / run.seconds / limits.multiply_adds_per_second


def over_http(
    server: OwnServer, workload: Workload, repeat: int, clients: int, tell: Callable[[int], Tell | None]
) -> OverHTTP:
    """Drive `clients` clients, all in this process, through the server."""
    target = Target(server.url, server.name)
    asyncio.run(drive(target, workload(0)[:4], clients=clients, probe=False))
    before, began = server.cpu_seconds(), server.engine_seconds()
    loads = [
        asyncio.run(drive(target, workload(repetition), clients=clients, tell=tell(repetition)))
        for repetition in range(repeat)
    ]
    after, ended = server.cpu_seconds(), server.engine_seconds()
    busy, kernels = (late - early for late, early in zip(ended, began, strict=True))
    wall = sum(load.seconds for load in loads)
    cpu = {f"{role} process": (after[role] - before[role]) / wall for role in after}
    return OverHTTP(
        total_rate=spread([load.total_rate for load in loads]),
        output_rate=spread([load.output_rate for load in loads]),
        ttft=percentiles([outcome.ttft for load in loads for outcome in load.outcomes]),
        itl=percentiles([gap for load in loads for outcome in load.outcomes for gap in outcome.itl]),
        health=percentiles([value for load in loads for value in load.health]),
        failed=sum(load.failed for load in loads),
        python_share=1 - kernels / busy if kernels else None,
        cpu={**cpu, "load generator": sum(load.client_cpu_seconds for load in loads) / wall},
    )


def table(found: Throughput, http: OverHTTP | None, perplexity: float | None) -> Table:
    """Return the figures as a table."""
    rows = [
        ("prompt + output tok/s", str(found.total_rate)),
        ("output tok/s", str(found.output_rate)),
        ("TTFT p50 / p99, ms", _pair(found.ttft)),
        ("ITL p50 / p99, ms", _pair(found.itl)),
        (
            "KV utilisation while anything waits",
            f"{found.kv_utilization:.1%}" if found.kv_utilization else "nothing waited",
        ),
        ("sequences in flight", number(found.in_flight)),
        ("most blocks held", f"{found.peak_blocks:,}"),
        ("preemptions", str(found.preemptions)),
    ]
    if found.python_share is not None:
        rows.append(("Python's share of the loop", f"{found.python_share.median:.1%}"))
    if found.compute_share is not None:
        rows.append(("share of the compute peak", f"{found.compute_share.median:.1%}"))
    if perplexity is not None:
        rows.append(("perplexity of this configuration", number(perplexity)))
    if http is not None:
        rows += [
            ("over HTTP: prompt + output tok/s", f"{http.total_rate}"),
            ("over HTTP ÷ in process", f"{http.ratio:.2f}"),
            ("over HTTP: TTFT p50 / p99, ms", _pair(http.ttft)),
            ("over HTTP: ITL p50 / p99, ms", _pair(http.itl)),
            ("over HTTP: /health p99, ms", number(http.health["p99"] * 1e3)),
            ("over HTTP: failed requests", str(http.failed)),
            *([("over HTTP: Python's share of the loop", f"{http.python_share:.1%}")] if http.python_share else []),
            *((f"CPU of one core: {role}", f"{share:.1%}") for role, share in http.cpu.items()),
        ]
    title = f"{found.requests} requests at once, {found.total_rate.count} repetitions"
    return Table(title, ("figure", "median (lowest–highest)"), rows)


def _pair(values: dict[str, float]) -> str:
    return f"{number(values['p50'] * 1e3)} / {number(values['p99'] * 1e3)}"
