"""How many tokens a second: all requests at once, in process, or through the server by clients of another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from octavo_engine.bench.harness import Harness, RunResult, Tell
from octavo_engine.bench.limits import Limits, Work
from octavo_engine.bench.load import LoadResult, Target, drive
from octavo_engine.bench.own_server import OwnServer
from octavo_engine.bench.perplexity import Beside
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import Spread, number, percentiles, repetitions, spread
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
    ratio: Spread
    """Of the prompt and output tokens a second in process, repetition by repetition."""
    ttft: dict[str, float]
    itl: dict[str, float]
    health: dict[str, float]
    failed: int
    cpu: dict[str, float]
    python_share: float | None = None
    """Of the engine loop's busy time, the API process attached."""


class Run(NamedTuple):
    """One repetition in process."""

    items: list[Item]
    result: RunResult


class Overhead:
    """The same items through a server, by clients that all live in this process; counts who takes which CPU."""

    def __init__(self, server: OwnServer, clients: int) -> None:
        """Drive `clients` clients at once."""
        self._server = server
        self._target = Target(server.url, server.name)
        self._clients = clients
        self._loads: list[LoadResult] = []
        self._cpu: dict[str, float] = {}
        self._busy = self._kernels = 0.0

    def warm_up(self, items: list[Item]) -> None:
        """Run items that count for nothing."""
        asyncio.run(drive(self._target, items, clients=self._clients, probe=False))

    def run(self, items: list[Item], tell: Tell | None) -> None:
        """Run one repetition."""
        cpu, (busy, kernels) = self._server.cpu_seconds(), self._server.engine_seconds()
        load = asyncio.run(drive(self._target, items, clients=self._clients, tell=tell))
        self._loads.append(load)
        busy_after, kernels_after = self._server.engine_seconds()
        self._busy += busy_after - busy
        self._kernels += kernels_after - kernels
        taken = {f"{role} process": value - cpu[role] for role, value in self._server.cpu_seconds().items()}
        for role, seconds in {**taken, "load generator": load.client_cpu_seconds}.items():
            self._cpu[role] = self._cpu.get(role, 0.0) + seconds

    def summarize(self, in_process: Sequence[RunResult]) -> OverHTTP:
        """Return the figures, beside those of the same items in process."""
        loads = self._loads
        wall = sum(load.seconds for load in loads)
        pairs = zip(loads, in_process, strict=True)
        return OverHTTP(
            total_rate=spread([load.total_rate for load in loads]),
            output_rate=spread([load.output_rate for load in loads]),
            ratio=spread([load.total_rate / run.total_rate for load, run in pairs]),
            ttft=percentiles([outcome.ttft for load in loads for outcome in load.outcomes]),
            itl=percentiles([gap for load in loads for outcome in load.outcomes for gap in outcome.itl]),
            health=percentiles([value for load in loads for value in load.health]),
            failed=sum(load.failed for load in loads),
            cpu={role: seconds / wall for role, seconds in self._cpu.items()},
            python_share=1 - self._kernels / self._busy if self._kernels else None,
        )


def measure(
    harness: Harness, workload: Workload, repeat: int, tell: Callable[[str], Tell], http: Overhead | None = None
) -> list[Run]:
    """Run `repeat` repetitions in process, and each one's items over HTTP right after, after short ones to warm up."""
    first = workload(0)[:4]
    harness.run(first)
    if http is not None:
        http.warm_up(first)
    runs = []
    for repetition in range(repeat):
        items = workload(repetition)
        name = f"{repetition + 1}/{repeat}"
        runs.append(Run(items, harness.run(items, tell(f"in process {name}"))))
        if http is not None:
            http.run(items, tell(f"over HTTP {name}"))
    return runs


def summarize(runs: Sequence[Run], work: Work | None = None, limits: Limits | None = None) -> Throughput:
    """Return the figures of runs."""
    results = [run.result for run in runs]
    shares = [run.python_share for run in results if run.python_share is not None]
    computed = [compute_share(run, work, limits) for run in results] if work and limits else []
    return Throughput(
        workload=[digest(run.items) for run in runs],
        outputs=[run.digest for run in results],
        requests=len(runs[0].items),
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


def table(found: Throughput, http: OverHTTP | None, perplexity: Beside | None) -> Table:
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
        rows.append(perplexity.row())
    if http is not None:
        rows += [
            ("over HTTP: prompt + output tok/s", f"{http.total_rate}"),
            ("over HTTP ÷ in process", str(http.ratio)),
            ("over HTTP: TTFT p50 / p99, ms", _pair(http.ttft)),
            ("over HTTP: ITL p50 / p99, ms", _pair(http.itl)),
            ("over HTTP: /health p99, ms", number(http.health["p99"] * 1e3)),
            ("over HTTP: failed requests", str(http.failed)),
            *([("over HTTP: Python's share of the loop", f"{http.python_share:.1%}")] if http.python_share else []),
            *((f"CPU of one core: {role}", f"{share:.1%}") for role, share in http.cpu.items()),
        ]
    title = f"{found.requests} requests at once, {repetitions(found.total_rate)}"
    return Table(title, ("figure", "median (lowest–highest)"), rows)


def _pair(values: dict[str, float]) -> str:
    return f"{number(values['p50'] * 1e3)} / {number(values['p99'] * 1e3)}"
