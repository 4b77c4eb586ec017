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
    from octavo_engine.bench.peers.contender import Settings
    from octavo_engine.bench.peers.measure import Field
    from octavo_engine.bench.peers.model_files import ModelFiles
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
    duration: Annotated[float, typer.Option(min=1, help="With --served: seconds of arrivals a run.")] = 600.0,
    saturation_seconds: Annotated[
        float, typer.Option(min=1, help="With --served: about how long finding each server's saturation takes.")
    ] = 60.0,
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

    config = options.engine_config(model, device="cpu", threads=threads or compute_threads())
    settings = Settings(threads=config.threads)
    root = environments or peers_root()
    with options.ending_in_a_sentence(PeerError, *options.expected(), OSError):
        wanted = _points(point)
        files = ModelFiles(_gguf(config.model), root / "models")
        found = registry.find(registry.choose(peer or []), root, install, say)
        machine = describe_machine(settings.threads)
        contenders, configs = _contenders(found, files, settings)
        described: dict[str, Any] = {
            "model": files.gguf.name,
            **{name: getattr(settings, name) for name in settings.__struct_fields__},
            **{name: version for one in found for name, version in one.versions.items()},
        }
        shown: list[Any] = []
        figures: dict[str, Any] = {}
        if len(contenders) > len(configs):
            measured, field_perplexities = _measure(contenders, wanted, repeat, perplexity_windows)
            compared = tables.compare(measured, field_perplexities)
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


def _points(names: list[str] | None) -> list[Any]:
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


def _contenders(
    found: list[Installed], files: ModelFiles, settings: Settings
) -> tuple[list[Any], dict[str, EngineConfig]]:
    """Return everybody, ours first, and our configurations; a peer that cannot be prepared is left out."""
    from octavo_engine.bench.peers import ours
    from octavo_engine.bench.peers.errors import PeerError

    theirs = []
    for one in found:
        try:
            theirs += one.peer.contenders(one.environment, files, settings)
        except PeerError as error:
            say(f"{one.peer.title} is left out: {error}")
    configs = ours.configurations(files, settings, quantized_folder=any(c.name == "vllm:bf16" for c in theirs))
    return [*ours.contenders(configs, options.load), *theirs], configs


def _measure(contenders: list[Any], points: list[Any], repeat: int, windows: int) -> tuple[Any, dict[str, Any]]:
    from octavo_engine.bench.peers.measure import Field, measure

    field = Field(contenders, say)
    try:
        measured = measure(field, points, repeat, say, best_of=("llamacpp:file",))
        return measured, _perplexities(field, windows)
    finally:
        field.close()


def _perplexities(field: Field, windows: int) -> dict[str, float | None]:
    from octavo_engine.bench.peers.ours import OwnEngine

    return {
        name: options.perplexity(running.harness, windows)
        for name, running in field.running.items()
        if isinstance(running, OwnEngine)
    }


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
