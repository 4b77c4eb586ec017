"""`octavo bench peers`: other engines on the same workload, each in an environment of its own, by turns with ours."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo_engine.commands import bench_options as options

if TYPE_CHECKING:
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.peers.contender import Contender, Settings
    from octavo_engine.bench.peers.measure import Measured
    from octavo_engine.bench.peers.model_files import ModelFiles
    from octavo_engine.bench.peers.point import Point
    from octavo_engine.bench.peers.registry import Installed
    from octavo_engine.bench.peers.serving import Served
    from octavo_engine.ipc.config import EngineConfig


def peers(
    model: options.Model = options.BUNDLED,
    peer: Annotated[
        list[str] | None, typer.Option(help="openvino, llamacpp or vllm; may be given again. Default: all.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="First install what is missing: minutes, and gigabytes for vllm.")
    ] = False,
    environments: Annotated[
        Path | None, typer.Option(help="Folder of the peers' environments; default: in the cache.")
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(help="mixed, batch, decode or prefill; may be given again. Default: all of them."),
    ] = None,
    repeat: options.Repeat = 5,
    perplexity_windows: options.PerplexityWindows = 4,
    served: Annotated[
        bool, typer.Option("--served", help="Also server against server over HTTP, under open-loop arrivals.")
    ] = False,
    duration: Annotated[
        float, typer.Option(min=1, callback=options.finite, help="With --served: seconds of arrivals a run.")
    ] = 600.0,
    saturation_seconds: Annotated[
        float,
        typer.Option(
            min=1, callback=options.finite, help="With --served: about how long finding each server's saturation takes."
        ),
    ] = 60.0,
    in_process: Annotated[bool, typer.Option(help="The points, each engine in a process without HTTP.")] = True,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 0,
    speculation: options.Speculation = "off",
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Other engines beside ours: same model, same requests, by turns; medians, spreads and ratios."""
    from octavo_engine.bench.machine import describe_machine
    from octavo_engine.bench.peers import ours, registry, tables
    from octavo_engine.bench.peers.contender import Settings
    from octavo_engine.bench.peers.environment import peers_root
    from octavo_engine.bench.peers.errors import PeerError
    from octavo_engine.bench.peers.model_files import ModelFiles
    from octavo_engine.bench.report import Report
    from octavo_engine.worker.cgroup import compute_threads

    if not (in_process or served):
        raise typer.BadParameter(
            "nothing is left to measure: add --served, or leave this out.", param_hint="'--no-in-process'"
        )
    wanted = _points(point)
    with options.ending_in_a_sentence(PeerError):
        chosen = registry.choose(peer or [])
    config = options.engine_config(
        model,
        device="cpu",
        max_num_batched_tokens=max_num_batched_tokens,
        speculation=speculation,
        threads=threads or compute_threads(),
    )
    settings = Settings(threads=config.threads)
    root = environments or peers_root()
    with options.ending_in_a_sentence(PeerError, *options.expected(), OSError):
        files = ModelFiles(_gguf(config.model), root / "models")
        found = registry.find(chosen, root, install, say)
        machine = describe_machine(settings.threads)
        theirs = _theirs(found, files, settings)
        safetensors = any(contender.name == "vllm:bf16" for contender in theirs)
        configs = ours.configurations(config, files, settings, safetensors)
        described: dict[str, Any] = {
            "model": files.gguf.name,
            **{name: getattr(settings, name) for name in settings.__struct_fields__},
            **{name: version for one in found for name, version in one.versions.items()},
        }
        shown: list[Any] = []
        figures: dict[str, Any] = {}
        if in_process and theirs:
            contenders = [*ours.contenders(configs, options.load), *theirs]
            measured, own = _measure(contenders, wanted, repeat, perplexity_windows)
            described |= {name: settled for name, (settled, _) in own.items()}
            compared = tables.compare(measured, {name: perplexity for name, (_, perplexity) in own.items()})
            shown, figures["in_process"] = tables.tables(measured, compared), compared
        if served and found:
            from octavo_engine.bench.peers import serving

            servers = _servers(found, files, settings, configs[ours.FILE])
            over_http = serving.measure(servers, duration, saturation_seconds, say)
            shown, figures["served"] = [*shown, serving.table(over_http)], over_http
        if not shown:
            raise PeerError("No peer is here to compare with: run again with --install.")
    options.publish(Report("peers", machine, described, shown, figures), json_file)


def say(text: str) -> None:
    """Write a line to standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def _points(names: list[str] | None) -> list[Point]:
    from octavo_engine.bench.peers.point import POINTS

    known = {point.name: point for point in POINTS}
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"'{name}' is no point: write {', '.join(known)}.", param_hint="'--point'")
    return [point for point in POINTS if not names or point.name in names]


def _gguf(model: str) -> Path:
    path = Path(model)
    if path.suffix != ".gguf":
        raise typer.BadParameter("Peers are compared on one file that all can read: give a GGUF, or bundled://NAME.")
    return path


def _theirs(found: list[Installed], files: ModelFiles, settings: Settings) -> list[Contender]:
    """Return the peers as they are measured; one that cannot be prepared is left out."""
    from octavo_engine.bench.peers.errors import PeerError

    theirs = []
    for one in found:
        try:
            theirs += one.peer.contenders(one.environment, files, settings)
        except PeerError as error:
            say(f"{one.peer.title} is left out: {error}")
    return theirs


def _measure(
    contenders: list[Contender], points: list[Point], repeat: int, windows: int
) -> tuple[Measured, dict[str, tuple[str, float | None]]]:
    """Return all runs, and of our own engines by name what they chose and their perplexity."""
    from octavo_engine.bench.peers.measure import Field, measure
    from octavo_engine.bench.peers.ours import OwnEngine

    field = Field(contenders, say)
    try:
        measured = measure(field, points, repeat, say, best_of=("llamacpp:file",))
        return measured, {
            name: (running.describe(), options.perplexity(running.harness, windows))
            for name, running in field.running.items()
            if isinstance(running, OwnEngine)
        }
    finally:
        field.close()


def _servers(found: list[Installed], files: ModelFiles, settings: Settings, own: EngineConfig) -> list[Served]:
    from octavo_engine.bench.peers.peer_server import free_port, peer_server
    from octavo_engine.bench.peers.serving import OWN, Served

    servers = [Served(OWN, "octavo serve", partial(_own_target, own))]
    for one in found:
        port = free_port()
        command = one.peer.server(one.environment, files, settings, port)
        if command is not None:
            start = partial(peer_server, command, one.environment, port)
            servers.append(Served(one.peer.name, command.title, start))
    return servers


def _own_target(config: EngineConfig) -> AbstractContextManager[Target]:
    from contextlib import contextmanager

    from octavo_engine.bench.load import Target
    from octavo_engine.bench.own_server import own_server, serve_flags

    @contextmanager
    def started() -> Any:
        with own_server(config.model, serve_flags(config)) as server:
            yield Target(server.url, server.name)

    return started()
