"""The options that the bench commands share, and what they become."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

from octavo_engine.commands.api_key import read_api_key

if TYPE_CHECKING:
    from octavo_engine.bench.harness import Harness
    from octavo_engine.bench.limits import Limits, Work
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.perplexity import Beside, BesideSpeed
    from octavo_engine.bench.report import Report
    from octavo_engine.bench.workload import Item
    from octavo_engine.ipc.config import EngineConfig

BUNDLED: Final = "bundled://smollm2-135m-instruct"
SAY_EVERY_SECONDS: Final = 10.0


def finite(value: float) -> float:
    """Refuse what never ends; Typer names the option."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number to measure with: write one such as 30.")
    return value


def writable(file: Path | None) -> Path | None:
    """Refuse a file that cannot be written before anything is measured; Typer names the option."""
    if file is not None and not (file.parent.is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written: name a file in a folder that exists and is yours.")
    return file


def makeable(folder: Path | None) -> Path | None:
    """Refuse a folder that can be neither made nor written to before anything is measured; Typer names the option."""
    if folder is not None:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK)):
            raise typer.BadParameter(f"{folder} cannot be made: {there} is no folder of yours.")
    return folder


JsonFile = Annotated[Path | None, typer.Option("--json", callback=writable, help="Write the figures here, too.")]
Model = Annotated[str, typer.Argument(help="bundled://NAME, a GGUF file, a Hugging Face folder, or scripted://?…")]
SvgFolder = Annotated[Path | None, typer.Option("--svg", callback=makeable, help="Write plots into this folder.")]
Repeat = Annotated[int, typer.Option(min=1, help="Repetitions of which the median counts.")]
DType = Annotated[
    Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help="Arithmetic; float32 is the exact mode.")
]
Quantization = Annotated[
    Literal["auto", "none", "int8", "int4", "fp8"],
    typer.Option("--quantization", "-q", help="Weights; auto: as stored."),
]
KVCacheDType = Annotated[
    Literal["auto", "bfloat16", "float16", "float32", "int8", "bf16"],
    typer.Option(help="Storage type of the KV cache, as for 'octavo serve'."),
]
KVCacheMemory = Annotated[
    str, typer.Option("--kv-cache-memory", metavar="SIZE", help="Such as 4G or 512Mi; 0: what fits.")
]
MaxModelLen = Annotated[int, typer.Option(min=0, help="Longest sequence in tokens; 0: the longest that fits.")]
MaxNumSeqs = Annotated[int, typer.Option(min=0, help="Sequences in one step at the most; 0: up to 256.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(min=0, help="Tokens of one step at the most; 0: measured here.")]
Scheduler = Annotated[
    Literal["continuous", "static"], typer.Option(help="static: batches as transformers.generate forms them.")
]
KVAllocation = Annotated[
    Literal["paged", "contiguous"], typer.Option(help="contiguous: reserve --max-model-len for each sequence.")
]
PrefixSharing = Annotated[
    bool,
    typer.Option(
        "--prefix-sharing/--no-prefix-sharing",
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Share the KV blocks of equal prefixes.",
    ),
]
Speculation = Annotated[
    Literal["auto", "ngram", "off"],
    typer.Option(
        help="Drafts by prompt lookup. Off by default here: what greedy answers to random prompts repeat would flatter."
    ),
]
Threads = Annotated[
    int, typer.Option(min=0, max=1024, help="Compute threads; 0: what the affinity and the quota give.")
]
WorkloadKind = Annotated[
    str,
    typer.Option(
        "--workload",
        metavar="WORKLOAD",
        help="Random tokens. mixed: prompts of 16 to 256 and outputs of 8 to 256; skewed: prompts of 16 to 64, outputs "
        "of 8 to 32 and one in ten of 256 to 512; shared: 512 that all prompts begin with, 16 to 64 of their own, 32 "
        "out; fixed:PROMPT,OUTPUT, such as fixed:128,128; or the path of a trace (Azure's CSV, Mooncake's JSON lines).",
    ),
]
Requests = Annotated[int, typer.Option("--requests", "-n", min=1, help="How many requests.")]
Seed = Annotated[int, typer.Option(help="Of the first repetition; each further one takes the next.")]
PerplexityWindows = Annotated[
    int, typer.Option(min=0, help="Windows of 1,024 tokens whose perplexity is told beside the speed; 0: none.")
]


def refuse_without(context: typer.Context, flag: str, is_there: bool, *names: str) -> None:
    """Refuse those of the named options that stand on the command line, unless the one they belong to is there."""
    for name in names:
        if not is_there and given(context, name):
            _refuse(name, f"It counts for nothing without {flag}: add that, or leave this off.")


def refuse_with(context: typer.Context, flag: str, is_there: bool, *names: str) -> None:
    """Refuse those of the named options that stand on the command line beside the one that overrules them."""
    for name in names:
        if is_there and given(context, name):
            _refuse(name, f"It counts for nothing with {flag}: leave one of the two off.")


def refuse_other_threads(threads: int) -> None:
    """Refuse a number of threads that `octavo serve` would not compute with: it has the affinity and the quota's."""
    from octavo_engine.worker.cgroup import compute_threads

    if threads not in (0, compute_threads()):
        _refuse(
            "threads",
            f"'octavo serve' computes with {compute_threads()} threads here: leave it off with --over-http, or set the "
            "affinity of both by taskset.",
        )


def given(context: typer.Context, name: str) -> bool:
    """Return whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(name: str, sentence: str) -> NoReturn:
    raise typer.BadParameter(sentence, param_hint=f"'--{name.replace('_', '-')}'")


def engine_config(model: str, kv_cache_memory: str = "0", **settings: Any) -> EngineConfig:
    """Return the engine's configuration, the model fetched if it must be. Bad input ends the command."""
    import msgspec

    from octavo_engine.commands.progress import LoadingLog
    from octavo_engine.commands.sizes import parse_size
    from octavo_engine.ipc.config import EngineConfig
    from octavo_engine.model.pull import PullError, pull
    from octavo_engine.model.source import ModelNotFoundError
    from octavo_engine.model.spec import UnsupportedModelError
    from octavo_engine.worker.load import SCRIPTED_SCHEME

    try:
        size = parse_size(kv_cache_memory)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--kv-cache-memory'") from None
    with ending_in_a_sentence(PullError, ModelNotFoundError, UnsupportedModelError, OSError):
        found = model if model.startswith(SCRIPTED_SCHEME) else str(pull(model, LoadingLog().report))
    if settings.get("kv_cache_dtype") == "bf16":
        settings["kv_cache_dtype"] = "bfloat16"
    values = {"model": found, "socket_folder": "", "kv_cache_memory": size, **settings}
    try:
        return msgspec.convert(values, EngineConfig)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"{error}.") from None


def load(config: EngineConfig) -> Harness:
    """Return the loaded model with everything settled that was left to measurement. Bad input ends the command."""
    from octavo_engine.bench.harness import Harness
    from octavo_engine.commands.progress import LoadingLog
    from octavo_engine.worker.cgroup import compute_threads

    threads = str(config.threads or compute_threads())
    # Before any library that computes is imported: it reads them once.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = threads
    harness = Harness(config, LoadingLog().report)
    harness.settle()
    return harness


def is_trace(kind: str) -> bool:
    """Return whether a workload is recorded: a file."""
    return Path(kind).is_file()


def workload(
    kind: str, requests: int, vocab: int, longest: int = 0, seconds: float = 0.0
) -> Callable[[int], list[Item]]:
    """Return what makes a workload from a seed; of a trace, its first requests or `seconds`. Raises BadParameter."""
    from octavo_engine.bench import workload as made

    name, _, rest = kind.partition(":")
    simple = {"mixed": made.mixed, "skewed": made.skewed, "shared": made.shared_prefix}
    if name in simple and not rest:
        make = simple[name]
        return lambda seed: make(requests, seed, vocab)
    if name == "fixed":
        try:
            prompt, output = (int(part) for part in rest.split(","))
        except ValueError:
            prompt = output = 0
        if min(prompt, output) > 0:
            return lambda seed: made.fixed(requests, prompt, output, seed, vocab)
    elif is_trace(kind):
        return lambda seed: made.read_trace(
            Path(kind), limit=requests, seconds=seconds, longest=longest, seed=seed, vocab=vocab
        )
    raise typer.BadParameter(
        f"'{kind}' is no workload: write mixed, skewed, shared, fixed:PROMPT,OUTPUT such as fixed:128,128, or the path "
        "of a trace.",
        param_hint="'--workload'",
    )


def seeded(make: Callable[[int], list[Item]], first: int) -> Callable[[int], list[Item]]:
    """Return what makes the items of a repetition, `first` being the seed of repetition 0."""
    return lambda repetition: make(first + repetition)


@contextmanager
def ending_in_a_sentence(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into one sentence on standard error and exit code 1."""
    try:
        yield
    except kinds as error:
        end(str(error) or f"{type(error).__name__}.")


def end(sentence: str) -> NoReturn:
    """End the command with a sentence on standard error and exit code 1."""
    print(f"octavo bench: {sentence}", file=sys.stderr)
    raise typer.Exit(1)


def expected() -> tuple[type[Exception], ...]:
    """Return the errors of a bench on a model that are one sentence for a person, its own server's among them."""
    from octavo_engine.bench.harness import BenchError
    from octavo_engine.bench.http_stream import StreamError
    from octavo_engine.bench.load import LoadError
    from octavo_engine.bench.own_server import ServerError
    from octavo_engine.bench.perplexity import QualityError
    from octavo_engine.bench.workload import WorkloadError
    from octavo_engine.worker.sizing import StartError

    own = (BenchError, LoadError, StreamError, ServerError, QualityError, WorkloadError, StartError)
    return *own, OSError, MemoryError


def work(harness: Harness) -> Work | None:
    """Return what the model's products amount to, None for one that does not say."""
    from octavo_engine.bench.limits import work_of

    return work_of(harness.model.executable)


def limits(harness: Harness, wanted: bool) -> Limits | None:
    """Measure the machine's limits for the model's arithmetic, if wanted and if it has weights at all."""
    from octavo_engine.bench.limits import measure_limits

    if not wanted or work(harness) is None:
        return None
    telling("the machine's limits")
    return measure_limits(harness.model.dtype, harness.config.threads, harness.pool)


def beside_speed(harness: Harness, windows: int) -> BesideSpeed | None:
    """Return what takes the perplexity beside a speed; None if it is not wanted, or of a script, which has none."""
    from octavo_engine.bench.perplexity import BesideSpeed

    return BesideSpeed(harness, windows) if windows and work(harness) is not None else None


def quality(found: Beside | None) -> dict[str, Any]:
    """Return the perplexity as figures: the number alone, null if not measured, and what it is of or why not."""
    return {"perplexity": found.perplexity if found else None, "perplexity_of": found}


def perplexity(harness: Harness, windows: int) -> float | None:
    """Return the perplexity of the harness's configuration on Python's own texts; None if there is none."""
    beside = beside_speed(harness, windows)
    found = beside.measure(telling) if beside else None
    if found is not None and found.why_not:
        print(f"  perplexity: not measured: {found.why_not}", file=sys.stderr, flush=True)
    return found.perplexity if found else None


def target(url: str, model: str, api_key_file: Path | None) -> Target:
    """Return the server and the model's name there. Raises ValueError, OSError, RuntimeError if it does not say."""
    import asyncio

    from octavo_engine.bench.load import Target, first_model

    key = read_api_key(api_key_file) if api_key_file else os.environ.get("OPENAI_API_KEY", "")
    return Target(url, model or asyncio.run(first_model(url, key)), key)


def arrivals(items: list[Item], kind: str, rate: float) -> list[Item]:
    """Return the items with their arrivals: a trace's own, at its own mean rate or at `rate`; else Poisson."""
    from octavo_engine.bench.workload import poisson, rescale

    if not rate:
        return items
    return rescale(items, rate) if is_trace(kind) else poisson(items, rate)


def telling(name: str) -> Callable[[int, int], None]:
    """Say on standard error what begins; return what takes (done, all) and says every ten seconds how far it is."""
    import time

    said = time.monotonic()
    print(f"  {name}", file=sys.stderr, flush=True)

    def tell(done: int, whole: int) -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY_SECONDS:
            said = time.monotonic()
            print(f"  {name}: {done / max(whole, 1):.0%}", file=sys.stderr, flush=True)

    return tell


def caption(report: Report) -> str:
    """Return what stands below a plot: the model, the whole configuration and the machine."""
    model = str(report.configuration["model"])
    model = Path(model).name if Path(model).exists() else model
    others = (f"{name} {value}" for name, value in report.configuration.items() if name != "model")
    return f"{model}: {', '.join(others)}. {report.machine.sentence()}"


def keep(report: Report, json_file: Path | None) -> None:
    """Write the report's figures, if that is wanted. Ends the command if they cannot be written."""
    from octavo_engine.bench.report import write_json

    with ending_in_a_sentence(OSError):
        if json_file is not None:
            write_json(json_file, report)


def publish(
    report: Report, json_file: Path | None, svg: Path | None = None, plots: dict[str, str] | None = None
) -> None:
    """Print the report, and write its files. Ends the command if they cannot be written."""
    from octavo_engine.bench.report import show

    show(report)
    keep(report, json_file)
    with ending_in_a_sentence(OSError):
        if svg is not None:
            svg.mkdir(parents=True, exist_ok=True)
            for name, text in (plots or {}).items():
                (svg / name).write_text(text, encoding="utf-8")
