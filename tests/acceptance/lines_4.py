"""Each acceptance line of the fast CPU engine as the benches that measure it, each figure beside its goal.

The short form runs the same commands for seconds: it proves that every figure can be taken, not that it is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from octavo_engine.bench.peers.environment import peers_root
from octavo_engine.bench.peers.model_files import ModelFiles, make_safetensors
from octavo_engine.bench.peers.point import POINTS
from octavo_engine.bench.peers.ratio import LINES as PROMISES
from octavo_engine.bench.peers.schedule import BEST_BATCH
from octavo_engine.bench.peers.serving import OWN, plan
from octavo_engine.bench.statistics import number
from octavo_engine.model.bundled import BUNDLED

from . import startup
from .figures import Figure, at_least, at_most, bench, failed, missing
from .running import Ran, pytest

MODEL: Final = "bundled://smollm2-135m-instruct"
BUILT_IN_TEXT: Final = "pydoc_data.topics"
SPARE_BYTES: Final = 200e6
KV_BYTES: Final = 256 * 2**20
NO_MODEL: Final = f"run octavo pull {MODEL}"
PEER_SERVERS: Final = ("llamacpp", "vllm")


class Settings:
    """How the lines are run."""

    def __init__(self, short: bool, texts: list[str], install: bool) -> None:
        """`texts` are files beside Python's own texts; `install` lets the peers' environments be made."""
        self.short = short
        self.texts = texts
        self.install = install


def line_1(settings: Settings) -> Iterator[Figure]:
    """Throughput beside OpenVINO GenAI, vLLM and llama.cpp; over HTTP beside in process."""
    if not settings.short:
        yield from _peers(1, settings, "mixed", "batch")
    size = ("--requests", "8", "--repeat", "1", "--perplexity-windows", "1") if settings.short else ("--repeat", "5")
    ran, found = bench("throughput", MODEL, "--over-http", "--clients", "64", *size)
    if not found:
        yield failed(1, ran)
        return
    http = found["over_http"]
    yield at_least(1, "over HTTP ÷ in process, mixed workload", http["ratio"]["median"], 0.85, ran)
    yield at_most(1, "failed requests", http["failed"], 0, ran, "{:.0f}")
    yield at_most(1, "Python's share at 64 streams, API process attached", http["python_share"], 0.05, ran, "{:.1%}")
    yield at_most(1, "API process's share of a core at 64 streams", http["cpu"]["api process"], 0.10, ran, "{:.1%}")


def line_2(settings: Settings) -> Iterator[Figure]:
    """One stream beside llama.cpp and OpenVINO GenAI."""
    if not settings.short:
        yield from _peers(2, settings, "decode", "prefill")
    ran, found = bench("latency", MODEL, "--no-limits", *_once(settings))
    if not found:
        yield failed(2, ran)
        return
    latency = found["latency"]
    share = latency["python_share"]
    yield at_most(2, "Python's share at 1 stream", share and share["median"], 0.15, ran, "{:.1%}")
    for name in ("decode_rate", "prefill_rate"):
        told = f"{latency[name]['median']:.0f} tok/s, perplexity {found['perplexity']:.2f}"
        yield Figure(2, f"{name.replace('_', ' ')} of ours", told, "told", True, ran.seconds)


def line_3(settings: Settings) -> Iterator[Figure]:
    """Shares of the machine's limits."""
    ran, found = bench("latency", MODEL, *_once(settings))
    if not found:
        yield failed(3, ran)
        return
    prefill, decode = (found["latency"][name] for name in ("prefill_compute_share", "bandwidth_share"))
    yield at_least(3, "share of the compute peak, prefill of 512", prefill and prefill["median"], 0.70, ran, "{:.1%}")
    yield at_least(3, "share of the reading speed, one stream", decode and decode["median"], 0.70, ran, "{:.1%}")
    size = ("--requests", "8", "--repeat", "1", "--perplexity-windows", "1") if settings.short else ()
    ran, found = bench("throughput", MODEL, "--limits", "--workload", "fixed:128,128", *size)
    share = found["in_process"]["compute_share"] if found else None
    yield at_least(3, "share of the compute peak, end to end at 64", share and share["median"], 0.60, ran, "{:.1%}")


def line_4(settings: Settings) -> Iterator[Figure]:
    """From exec to the first token, memory, and torch in neither process."""
    model = BUNDLED["smollm2-135m-instruct"]
    path = model.find()
    if path is None:
        yield missing(4, MODEL, "is here", NO_MODEL)
        return
    with startup.fresh_cache(path.parents[1]) as cache:
        cold = startup.measure(str(path), cache)
        warm = min((startup.measure(str(path), cache) for _ in range(1 if settings.short else 3)), key=lambda s: s[1])
        packed = sum(file.stat().st_size for file in (cache / "packed").rglob("*") if file.is_file())
    yield _seconds("first token without packed weights", cold.first_token_seconds, 6.0)
    yield _seconds("first token with packed weights", warm.first_token_seconds, 3.0)
    limit = packed + KV_BYTES + SPARE_BYTES
    memory = f"{warm.pss_bytes / 1e6:.0f} MB"
    yield Figure(4, "PSS of both processes", memory, f"≤ {limit / 1e6:.0f} MB", warm.pss_bytes <= limit)
    yield Figure(4, "processes with torch", str(warm.torch_in or "none"), "none", not warm.torch_in)


def line_5(settings: Settings) -> Iterator[Figure]:
    """Perplexity of each arithmetic against float32 of the same weights."""
    path = BUNDLED["smollm2-135m-instruct"].find()
    if path is None:
        yield missing(5, MODEL, "is here", NO_MODEL)
        return
    # Of the GGUF: its own int4 weights, then the cache; of its dequantised weights: what quantising at load costs.
    yield from _perplexity(settings, str(path), {"auto": 0.01, "bfloat16": 0.003, "float32/auto/int8": 0.003})
    folder = make_safetensors(ModelFiles(path, peers_root() / "models"))
    yield from _perplexity(settings, str(folder), {"auto/int8": 0.007, "auto/int4": 0.01})


def line_6(settings: Settings) -> Iterator[Figure]:
    """The headline: each mechanism off and on, with identical tokens."""
    ran, found = bench("headline", MODEL, *(("--short",) if settings.short else ()))
    if not found:
        yield failed(6, ran)
        return
    claims: dict[str, Any] = found["headline"]
    for claim in claims["batching"]:
        name = f"continuous ÷ static, {claim['workload']} at {claim['max_num_seqs']}"
        if claim["workload"] == "skewed":
            yield at_least(6, name, claim["ratio"]["median"], 3.0, ran)
        else:
            yield Figure(6, name, f"{claim['ratio']['median']:.2f}", "told (1.6 to 1.9 expected)", True, ran.seconds)
        ratio = f"{claim['unpadded_ratio']['median']:.2f}"
        yield Figure(6, f"{name}, static without padding", ratio, "told", True, ran.seconds)
    use, share, compound = claims["utilization"], claims["sharing"], claims["compound"]
    yield at_most(6, "KV utilisation, contiguous", use["contiguous"], 0.50, ran, "{:.1%}")
    yield at_least(6, "KV utilisation, paged", use["paged"], 0.96, ran, "{:.1%}")
    yield at_least(6, "in flight, paged ÷ contiguous", use["paged_in_flight"] / use["contiguous_in_flight"], 2.0, ran)
    yield at_most(6, "blocks, shared ÷ unshared prefix", share["blocks"] / share["blocks_without"], 0.2, ran, "{:.3f}")
    yield at_most(6, "TTFT p50, shared ÷ unshared prefix", share["ttft_ratio"]["median"], 1 / 3, ran, "{:.3f}")
    yield at_least(6, "in flight, paged + shared ÷ neither", compound["both"] / compound["neither"], 4.0, ran)
    alone = max(compound["paged"], compound["shared"])
    yield at_least(6, "in flight, paged + shared ÷ the better alone", compound["both"] / alone, 1.01, ran)
    yield at_most(6, "cost when nothing can be shared", claims["sharing_cost"]["median"], 0.02, ran, "{:+.1%}")
    yield Figure(6, "workloads with identical tokens", str(len(claims["outputs"])), "all", True, ran.seconds)


def line_7(settings: Settings) -> Iterator[Figure]:
    """Latency under load, server against server; /health meanwhile."""
    if settings.short:
        yield Figure(7, "server against server", "in the long form only", "told", None)
        return
    flags = ("--install",) if settings.install else ()
    # One point of few rounds: the command starts with the comparison in process.
    ran, found = bench("peers", MODEL, "--served", "--point", "decode", "--repeat", "1", *flags)
    if not found or "served" not in found:
        yield failed(7, ran)
        return
    yield from of_served(found["served"]["runs"], ran)


def line_8(settings: Settings) -> Iterator[Figure]:
    """Kernels against their references on every variant."""
    if settings.short:
        yield Figure(8, "kernels against their references", "by make test, and in the long form", "told", None)
        return
    ran = pytest("tests/kernels/cpu", "tests/kernels/test_other_processors.py")
    yield Figure(8, ran.command, ran.line(r"passed|failed|error"), "all pass", ran.code == 0, ran.seconds)


LINES: Final[dict[int, Callable[[Settings], Iterator[Figure]]]] = {
    1: line_1,
    2: line_2,
    3: line_3,
    4: line_4,
    5: line_5,
    6: line_6,
    7: line_7,
    8: line_8,
}


# --- From what the benches found to figures -----------------------------------------------------------------------
def of_ratios(line: int, found: Mapping[str, Any], points: Sequence[str], ran: Ran) -> Iterator[Figure]:
    """Yield every ratio that is promised at these points; one with an engine missing was not measured."""
    titles = {point.title: point.name for point in POINTS}
    # A best batch size of 64 is the point that everybody has already.
    there = {(titles.get(one["point"], BEST_BATCH), one["contender"]) for one in found["figures"]}
    there |= {(BEST_BATCH, contender) for contender in found["best_batch"]}
    ratios = {(ratio["title"], ratio["point"], ratio["ours"]): ratio for ratio in found["ratios"]}
    for promise in (one for one in PROMISES if one.ours[0] in points):
        point, ours = promise.ours
        absent = dict.fromkeys(name for at, name in (promise.ours, *promise.peers) if (at, name) not in there)
        ratio = ratios.get((promise.title, point, ours))
        if absent or ratio is None:
            what = f"{ours}, {point} ({promise.title})"
            yield missing(line, what, f"≥ {promise.least:.2f}", f"no {', '.join(absent)}", ran.seconds)
        else:
            what = f"{ours} ÷ {ratio['best']}, {point} ({promise.title})"
            yield at_least(line, what, ratio["ratio"]["median"], promise.least, ran)


def of_served(runs: Sequence[Mapping[str, Any]], ran: Ran) -> Iterator[Figure]:
    """Yield line 7's figures: for each peer at its rate and at ours, both of its p99 beside ours at the same rate."""
    found = {(run["server"], run["rate_of"]): run["found"] for run in runs}
    for server, rate_of in plan(dict.fromkeys((*PEER_SERVERS, OWN), 0.0)):
        if server == OWN:
            continue
        what = f"p99 against {server} at 70 % of {rate_of}'s saturation, ms"
        theirs, ours = found.get((server, rate_of)), found.get((OWN, rate_of))
        if theirs is None or ours is None:
            yield missing(7, what, "lower", f"no run of {server if theirs is None else OWN}", ran.seconds)
            continue
        for name in ("ttft", "itl"):
            yield _lower(f"{name.upper()} {what}", ours, theirs, name, ran)
    health = [_number(one["health"]["p99"]) for (server, _), one in found.items() if server == OWN]
    slowest = None if not health or None in health else max(health)
    yield at_most(7, "/health p99, s", slowest, 0.1, ran, "{:.3f}")


def _lower(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str, ran: Ran) -> Figure:
    mine, other = _number(ours[name]["p99"]), _number(theirs[name]["p99"])
    if mine is None or other is None:
        return missing(7, what, "lower", f"{'ours' if mine is None else 'theirs'} has no figure", ran.seconds)
    shown, goal = (number(value * 1e3) for value in (mine, other))
    return Figure(7, what, shown, f"< {goal}", mine < other, ran.seconds)


def _number(written: float | str | None) -> float | None:
    """Return a figure of a report: `"infinite"` is infinity, null one that was not measured."""
    return math.inf if written == "infinite" else None if written is None else float(written)


def _peers(line: int, settings: Settings, *points: str) -> Iterator[Figure]:
    chosen = [argument for point in points for argument in ("--point", point)]
    ran, found = bench("peers", MODEL, *chosen, *(("--install",) if settings.install else ()))
    if not found:
        yield failed(line, ran)
        return
    if "in_process" not in found:
        yield failed(line, ran)
        return
    yield from of_ratios(line, found["in_process"], points, ran)


def _perplexity(settings: Settings, model: str, goals: dict[str, float]) -> Iterator[Figure]:
    texts = [argument for text in (BUILT_IN_TEXT, *settings.texts) for argument in ("--text", text)]
    chosen = [argument for name in goals for argument in ("-c", name)]
    ran, found = bench("perplexity", model, *chosen, *texts, "--windows", "1" if settings.short else "32")
    if not found:
        yield failed(5, ran)
        return
    for row in found["rows"]:
        name = row["configuration"]
        if name in goals:
            what = f"{Path(model).name}: {name} on {row['text']}, perplexity over float32"
            yield at_most(5, what, row["excess"], goals[name], ran, "{:+.2%}")


def _once(settings: Settings) -> tuple[str, ...]:
    return ("--repeat", "1", "--perplexity-windows", "1") if settings.short else ("--repeat", "5")


def _seconds(what: str, seconds: float, goal: float) -> Figure:
    return Figure(4, what, f"{seconds:.2f} s", f"≤ {goal:.0f} s", seconds <= goal, seconds)
