"""How many tokens a second: all requests at once, in process, or through the server by clients of another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from octavo_engine.bench.harness import Harness, RunResult, Tell
from octavo_engine.bench.latency_table import latency_table
from octavo_engine.bench.limits import Limits, Work
from octavo_engine.bench.load import LoadError, LoadResult, Target, drive, failures
from octavo_engine.bench.own_server import OwnServer
from octavo_engine.bench.perplexity import Beside
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import Spread, percentiles, repetitions, spread
from octavo_engine.bench.workload import Item, digest

Workload = Callable[[int], list[Item]]
"""The items of a repetition: the seed is the repetition's number, as the published figures were taken."""


class Throughput(msgspec.Struct, frozen=True):
    """Figures of repeated runs in process. Rates in tokens a second, times in seconds.

    Lists and the `values` of a spread have one entry per repetition, in order. What the backend does not count is
    None: null as JSON.
    """

    workload: list[str]
    """The digest of each repetition's items."""
    outputs: list[str]
    """The digest of each repetition's generated tokens: equal ones of two configurations are equal outputs."""
    requests: int
    """Of one repetition."""
    seconds: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    steps: list[int]
    preemptions: list[int]
    peak_blocks: list[int]
    total_rate: Spread
    """Of prompt and output tokens."""
    output_rate: Spread
    ttft: dict[str, float]
    """Percentiles over the requests of all repetitions together; so in `itl`, over their gaps."""
    itl: dict[str, float]
    kv_utilization: Spread
    """0 if nothing ever waited."""
    in_flight: Spread
    python_share: Spread | None = None
    compute_share: Spread | None = None


class OverHTTP(msgspec.Struct, frozen=True):
    """The same through `octavo serve`. CPU in shares of one core's wall time, by process.

    Percentiles are over all repetitions together; a request that failed is infinite in them, `"infinite"` as JSON.
    """

    seconds: list[float]
    """Of each repetition."""
    total_rate: Spread
    output_rate: Spread
    ratio: Spread
    """Of the prompt and output tokens a second in process, repetition by repetition."""
    ttft: dict[str, float]
    itl: dict[str, float]
    health: dict[str, float]
    failed: int
    """Requests of all repetitions."""
    first_error: str
    """Why the first of them failed; empty if none did."""
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
        """Run items that count for nothing. Raises LoadError if one fails: so would those that count."""
        load = asyncio.run(drive(self._target, items, clients=self._clients, probe=False))
        if load.failed:
            raise LoadError(f"Over HTTP: {failures(load)}")

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
            seconds=[load.seconds for load in loads],
            total_rate=spread([load.total_rate for load in loads]),
            output_rate=spread([load.output_rate for load in loads]),
            ratio=spread([load.total_rate / run.total_rate for load, run in pairs]),
            ttft=percentiles([outcome.ttft for load in loads for outcome in load.outcomes]),
            itl=percentiles([gap for load in loads for outcome in load.outcomes for gap in outcome.itl]),
            health=percentiles([value for load in loads for value in load.health]),
            failed=sum(load.failed for load in loads),
            first_error=next((load.first_error for load in loads if load.failed), ""),
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
        seconds=[run.seconds for run in results],
        prompt_tokens=[run.prompt_tokens for run in results],
        output_tokens=[run.output_tokens for run in results],
        steps=[run.observed.steps for run in results],
        preemptions=[run.snapshot.preemptions for run in results],
        peak_blocks=[run.observed.peak_blocks for run in results],
        total_rate=spread([run.total_rate for run in results]),
        output_rate=spread([run.output_rate for run in results]),
        ttft=percentiles([value for run in results for value in run.ttft]),
        itl=percentiles([value for run in results for value in run.itl]),
        kv_utilization=spread([run.observed.kv_utilization for run in results]),
        in_flight=spread([run.observed.in_flight for run in results]),
        python_share=spread(shares) if shares else None,
        compute_share=spread(computed) if computed else None,
    )


def compute_share(run: RunResult, work: Work, limits: Limits) -> float:
    """Return the multiply-adds of the weight products ÷ wall ÷ the machine's peak."""
    tokens = run.observed.tokens + run.observed.padding
    return work.multiply_adds(tokens, run.output_tokens) / run.seconds / limits.multiply_adds_per_second


def tables(found: Throughput, http: OverHTTP | None, perplexity: Beside | None) -> list[Table]:
    """Return the figures as tables: what each repetition has one of, and the percentiles of all together."""
    waited = found.kv_utilization.high > 0
    rows = [
        ("prompt + output tok/s", str(found.total_rate)),
        ("output tok/s", str(found.output_rate)),
        ("KV utilisation while anything waits", _percent(found.kv_utilization) if waited else "nothing waited"),
        ("sequences in flight", str(found.in_flight)),
        ("most blocks held", str(spread(found.peak_blocks))),
        ("preemptions", str(spread(found.preemptions))),
    ]
    if found.python_share is not None:
        rows.append(("Python's share of the loop", _percent(found.python_share)))
    if found.compute_share is not None:
        rows.append(("share of the compute peak", _percent(found.compute_share)))
    if perplexity is not None:
        rows.append(perplexity.row())
    latencies = {"TTFT": found.ttft, "ITL": found.itl}
    if http is not None:
        rows += _over_http(http)
        latencies |= {"over HTTP: TTFT": http.ttft, "over HTTP: ITL": http.itl, "over HTTP: /health": http.health}
    title = f"{found.requests} requests at once, {repetitions(found.total_rate)}"
    return [
        Table(title, ("figure", "median (lowest–highest)"), rows, perplexity.note if perplexity else ""),
        latency_table("all repetitions together", latencies),
    ]


def _over_http(http: OverHTTP) -> list[tuple[str, str]]:
    failed = f"{http.failed}, the first because {http.first_error}" if http.failed else "none"
    return [
        ("over HTTP: prompt + output tok/s", str(http.total_rate)),
        ("over HTTP ÷ in process", str(http.ratio)),
        ("over HTTP: failed requests", failed),
        *([("over HTTP: Python's share of the loop", f"{http.python_share:.1%}")] if http.python_share else []),
        *((f"CPU of one core: {role}", f"{share:.1%}") for role, share in http.cpu.items()),
    ]


def _percent(found: Spread) -> str:
    return f"{found.median:.1%}" if found.count == 1 else f"{found.median:.1%} ({found.low:.1%}–{found.high:.1%})"
