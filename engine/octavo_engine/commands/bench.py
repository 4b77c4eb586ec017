"""`octavo bench …`: how fast, how good, and what each mechanism is worth, measured on this machine.

Each command loads what it needs when it runs, prints a table with the machine and the whole configuration, and writes
the same figures with `--json`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from octavo_engine.commands import bench_options as options
from octavo_engine.commands.bench_peers import peers

if TYPE_CHECKING:
    from octavo_engine.bench.harness import Harness
    from octavo_engine.bench.load import LoadResult
    from octavo_engine.bench.throughput import Overhead

app = typer.Typer(name="bench", help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.command()(peers)

AT_ONCE: Final = 64
"""Requests of `bench serve` without a rate."""


@app.command()
def throughput(
    context: typer.Context,
    model: options.Model = options.BUNDLED,
    workload: options.WorkloadKind = "mixed",
    requests: options.Requests = 64,
    repeat: options.Repeat = 5,
    seed: options.Seed = 0,
    over_http: Annotated[
        bool, typer.Option("--over-http", help="Also through 'octavo serve', by clients in this process.")
    ] = False,
    clients: Annotated[int, typer.Option(min=1, help="With --over-http: clients at once.")] = 64,
    limits: Annotated[
        bool, typer.Option("--limits", help="Measure the machine's peak, and tell the share used.")
    ] = False,
    perplexity_windows: options.PerplexityWindows = 4,
    dtype: options.DType = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    kv_cache_memory: options.KVCacheMemory = "0",
    max_model_len: options.MaxModelLen = 0,
    max_num_seqs: options.MaxNumSeqs = 0,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 0,
    scheduler: options.Scheduler = "continuous",
    kv_allocation: options.KVAllocation = "paged",
    prefix_sharing: options.PrefixSharing = True,
    speculation: options.Speculation = "off",
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Tokens a second with all requests there at once: in this process, and with --over-http through the server."""
    from octavo_engine.bench import throughput as bench
    from octavo_engine.bench.report import Report

    options.refuse_without(context, "--over-http", over_http, "clients")
    if over_http:
        options.refuse_other_threads(threads)
    config = options.engine_config(
        model,
        kv_cache_memory,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        scheduler=scheduler,
        kv_allocation=kv_allocation,
        prefix_sharing=prefix_sharing,
        speculation=speculation,
        threads=threads,
    )
    with options.ending_in_a_sentence(*options.expected()):
        harness = options.load(config)
        make = options.workload(workload, requests, harness.vocab, harness.config.max_model_len)
        described = {
            "workload": workload,
            "requests": requests,
            "repeat": repeat,
            "seed": seed,
            **({"clients": clients} if over_http else {}),
            "perplexity-windows": perplexity_windows,
            **harness.describe(),
        }
        beside = options.beside_speed(harness, perplexity_windows)
        machine, known = harness.machine, options.limits(harness, limits)
        with ExitStack() as stack:
            http = _over_http(stack, harness, clients) if over_http else None
            runs = bench.measure(harness, options.seeded(make, seed), repeat, options.telling, http)
        found = bench.summarize(runs, options.work(harness), known)
        over = http.summarize([run.result for run in runs]) if http else None
        perplexity = beside.measure(options.telling) if beside else None
    figures = {"in_process": found, "over_http": over, **options.quality(perplexity), "limits": known}
    tables = bench.tables(found, over, perplexity)
    options.publish(Report("throughput", machine, described, tables, figures), json_file)


def _over_http(stack: ExitStack, harness: Harness, clients: int) -> Overhead:
    """Start a server of the harness's configuration for as long as the stack lives."""
    from octavo_engine.bench.own_server import own_server, serve_flags
    from octavo_engine.bench.throughput import Overhead

    server = stack.enter_context(own_server(harness.config.model, serve_flags(harness.config)))
    return Overhead(server, clients)


@app.command()
def latency(
    model: options.Model = options.BUNDLED,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of the decoding stream.")] = 128,
    output: Annotated[int, typer.Option(min=2, help="Tokens to decode.")] = 128,
    prefill: Annotated[int, typer.Option(min=1, help="Prompt tokens of the prefill.")] = 512,
    repeat: options.Repeat = 5,
    limits: Annotated[bool, typer.Option(help="Measure the machine's limits, and tell the shares used.")] = True,
    perplexity_windows: options.PerplexityWindows = 4,
    dtype: options.DType = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    kv_cache_memory: options.KVCacheMemory = "0",
    max_num_batched_tokens: options.MaxNumBatchedTokens = 2048,
    speculation: options.Speculation = "off",
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
) -> None:
    """One stream alone: decode, prefill, time to first token, and how near the machine's limits they come."""
    from octavo_engine.bench import latency as bench
    from octavo_engine.bench.report import Report

    config = options.engine_config(
        model,
        kv_cache_memory,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_sharing=False,
        speculation=speculation,
        threads=threads,
    )
    with options.ending_in_a_sentence(*options.expected()):
        harness = options.load(config)
        beside = options.beside_speed(harness, perplexity_windows)
        machine, known = harness.machine, options.limits(harness, limits)
        streams = bench.measure(harness, prompt, output, prefill, repeat, options.telling("one stream"))
        found = bench.summarize(streams, prompt, output, prefill, options.work(harness), known)
        perplexity = beside.measure(options.telling) if beside else None
    figures = {"latency": found, **options.quality(perplexity), "limits": known}
    tables = bench.tables(found, known, perplexity)
    inputs = {"prompt": prompt, "output": output, "prefill": prefill, "repeat": repeat}
    described = {**inputs, "perplexity-windows": perplexity_windows, **harness.describe()}
    options.publish(Report("latency", machine, described, tables, figures), json_file)


@app.command()
def serve(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="An OpenAI server, such as http://127.0.0.1:8000.")],
    model: Annotated[str, typer.Option(help="The model's name there; default: the server's first.")] = "",
    workload: options.WorkloadKind = "mixed",
    rate: Annotated[
        float,
        typer.Option(
            min=0, callback=options.finite, help="Poisson arrivals a second; 0: the trace's own, or all at once."
        ),
    ] = 0.0,
    duration: Annotated[
        float,
        typer.Option(min=1, callback=options.finite, help="Seconds of arrivals at a rate, or of a trace's own ones."),
    ] = 60.0,
    requests: Annotated[
        int,
        typer.Option(
            "--requests", "-n", min=0, help="How many instead; of a trace, how many of its first. All at once: 64."
        ),
    ] = 0,
    find_saturation: Annotated[
        bool, typer.Option("--find-saturation", help="First find what the server can do for --clients at once.")
    ] = False,
    share: Annotated[
        float,
        typer.Option(min=0.01, max=2, help="With --find-saturation: the rate as a share of saturation."),
    ] = 0.7,
    clients: Annotated[int, typer.Option(min=1, help="With --find-saturation: clients that find it.")] = 64,
    saturation_seconds: Annotated[
        float,
        typer.Option(min=1, callback=options.finite, help="With --find-saturation: about how long finding it takes."),
    ] = 60.0,
    slo_ttft: Annotated[
        float, typer.Option(min=0, callback=options.finite, help="Objective for the time to first token, ms.")
    ] = 1000.0,
    slo_itl: Annotated[
        float,
        typer.Option(min=0, callback=options.finite, help="Objective for a request's mean inter-token time, ms."),
    ] = 100.0,
    seed: Annotated[int, typer.Option(help="Of prompts and lengths; of those that find the saturation, one more.")] = 0,
    vocab: Annotated[
        int, typer.Option(min=0, help="Largest token id in prompts: one less than the model's vocabulary, at the most.")
    ] = 49000,
    longest: Annotated[int, typer.Option(min=2, help="Tokens to which a trace's requests are cut.")] = 2048,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    json_file: options.JsonFile = None,
    svg: options.SvgFolder = None,
) -> None:
    """Latency of any OpenAI server under open-loop arrivals: TTFT, ITL, end to end, goodput under an objective."""
    from octavo_engine.bench import online as bench
    from octavo_engine.bench.http_stream import StreamError
    from octavo_engine.bench.load import LoadError, failures
    from octavo_engine.bench.machine import describe_machine
    from octavo_engine.bench.report import Report

    trace = options.is_trace(workload)
    timed = bool(rate) or find_saturation
    _refuse_idle(context, trace, timed, find_saturation, requests > 0)
    with options.ending_in_a_sentence(OSError, ValueError, LoadError, StreamError):
        target = options.target(url, model, api_key_file)
        machine = describe_machine(role="load generator")
        found_rate = None
        if find_saturation:
            found_rate = bench.saturation(
                target,
                lambda count: options.workload(workload, count, vocab, longest)(seed + 1),
                clients,
                saturation_seconds,
                options.telling("saturation"),
            )
            rate = found_rate * share
        count = requests or (max(1, round(rate * duration)) if rate else 0 if trace else AT_ONCE)
        seconds = 0.0 if requests or rate else duration
        items = options.arrivals(options.workload(workload, count, vocab, longest, seconds)(seed), workload, rate)
        load = bench.run(target, items, options.telling(f"{len(items)} requests"))
        found = bench.summarize(load, items, slo_ttft / 1e3, slo_itl / 1e3, found_rate)
    described = {
        "url": url,
        "model": target.model,
        "workload": workload,
        "requests": len(items),
        **({"rate": rate} if timed else {}),
        **({"duration": duration} if (timed or trace) and not requests else {}),
        **({"share": share, "clients": clients, "saturation-seconds": saturation_seconds} if find_saturation else {}),
        "slo-ttft": slo_ttft,
        "slo-itl": slo_itl,
        "seed": seed,
        "vocab": vocab,
        **({"longest": longest} if trace else {}),
    }
    report = Report("serve", machine, described, [bench.table(found)], found)
    if found.failed == found.requests:
        options.keep(report, json_file)
        options.end(failures(load) + _vocabulary_hint(load, vocab))
    options.publish(report, json_file, svg, bench.plots(load, found.offered_rate, options.caption(report)))
    if found.failed:
        print(f"octavo bench: {failures(load)}{_vocabulary_hint(load, vocab)}", file=sys.stderr)


def _refuse_idle(context: typer.Context, trace: bool, timed: bool, find_saturation: bool, counted: bool) -> None:
    """Refuse what counts for nothing among the options of `bench serve`."""
    options.refuse_without(context, "--find-saturation", find_saturation, "share", "clients", "saturation_seconds")
    options.refuse_with(context, "--find-saturation", find_saturation, "rate")
    options.refuse_with(context, "--requests", counted, "duration")
    options.refuse_without(context, "--rate, --find-saturation or a trace", timed or trace, "duration")
    options.refuse_without(context, "a trace", trace, "longest")


def _vocabulary_hint(load: LoadResult, vocab: int) -> str:
    """Return which option to change where a server says that a prompt's token is none of its own."""
    return f" --vocab is {vocab}: give the model's largest token id." if "vocabulary" in load.first_error else ""


@app.command()
def headline(
    context: typer.Context,
    model: options.Model = options.BUNDLED,
    repeat: options.Repeat = 5,
    short: Annotated[bool, typer.Option("--short", help="A minute's form: fewer and smaller runs.")] = False,
    dtype: options.DType = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    max_num_batched_tokens: options.MaxNumBatchedTokens = 0,
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
    svg: options.SvgFolder = None,
) -> None:
    """What continuous batching, paged blocks and shared prefixes are worth: each off and on, with identical tokens."""
    import msgspec

    from octavo_engine.bench import headline as bench
    from octavo_engine.bench.headline_tables import plots, tables
    from octavo_engine.bench.report import Report

    options.refuse_with(context, "--short", short, "repeat")
    config = options.engine_config(
        model,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        speculation="off",
        threads=threads,
    )
    sizes = bench.SHORT if short else msgspec.structs.replace(bench.Sizes(), repeat=repeat)
    with options.ending_in_a_sentence(*options.expected()):
        harness = options.load(config)
        machine = harness.machine
        found = bench.Bench(harness, sizes, options.telling).run()
    described = {"repeat": sizes.repeat, "short": short, **harness.describe()}
    report = Report("headline", machine, described, tables(found), {"headline": found, "sizes": sizes})
    options.publish(report, json_file, svg, plots(found, options.caption(report)))


@app.command()
def perplexity(
    model: options.Model = options.BUNDLED,
    configurations: Annotated[
        list[str] | None,
        typer.Option(
            "--configuration",
            "-c",
            metavar="DTYPE/QUANTIZATION/KV-DTYPE",
            help="What to compare; may be given again. DTYPE is auto, bfloat16, float16 or float32; QUANTIZATION auto, "
            "none, int8, int4 or fp8; KV-DTYPE auto, bfloat16, float16, float32 or int8. What is left off is auto: "
            "bfloat16, auto/int8, auto/auto/int8. Default: auto, what 'octavo serve' takes.",
        ),
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="DTYPE/QUANTIZATION/KV-DTYPE", help="What they are compared with.")
    ] = "float32",
    text: Annotated[list[str] | None, typer.Option(help="A text file; may be given again. Default: Python's.")] = None,
    windows: Annotated[int, typer.Option(min=0, help="Windows of each text, spread over it; 0: all.")] = 32,
    window: Annotated[int, typer.Option(min=2, help="Tokens of a window.")] = 1024,
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Perplexity by the engine's own prompt log-probabilities: what an arithmetic costs in quality, against float32."""
    from octavo_engine.bench import perplexity as bench
    from octavo_engine.bench.report import Report

    config = options.engine_config(model, threads=threads, prefix_sharing=False)
    with options.ending_in_a_sentence(*options.expected()):
        names = text or [bench.BUILT_IN_TEXT]
        texts = [bench.read_text(name, config.model, windows, window) for name in names]
        found, machine = bench.measure(
            config, reference, configurations or ["auto"], texts, options.load, options.telling
        )
    described = {
        "model": model,
        "configurations": list(configurations or ["auto"]),
        "reference": reference,
        "texts": [text.name for text in texts],
        "windows": [len(text.windows) for text in texts],
        "window": window,
    }
    options.publish(Report("perplexity", machine, described, [bench.table(found, reference)], found), json_file)
