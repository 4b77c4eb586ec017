"""`octavo simulate`: a trace, scaling policies, and what each of them costs and keeps."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

TRACE = typer.Option("--trace", help="A trace's file (Azure, BurstGPT, Mooncake) or diurnal, step, crowd, steady.")
POLICY = typer.Option("--policy", help="A policy's name, or all; repeatable. Default: octavo.")
COLD_START = typer.Option(min=0.0, help="Seconds from a pod's creation to Ready (median).")
SLO_TTFT = typer.Option("--slo-ttft", min=0.001, help="Seconds to the first token that a request shall keep.")
SLO_ITL = typer.Option("--slo-itl", min=0.0, help="Mean seconds between tokens that it shall keep; 0: any.")
SWEEP = typer.Option("--sweep", help="Each policy over its main target, not at its default alone.")
SEEDS = typer.Option(min=1, help="Runs of each, with seeds from 0: made-up traces and start times differ.")
OUT = typer.Option("--out", file_okay=False, help="Write the pictures (SVG) and the report (JSON) into this folder.")
JSON_FILE = typer.Option("--json", dir_okay=False, help="Write the figures here, too.")
POD = typer.Option("--pod", help="What a pod does: scripted://?prefill=8000&step=20ms&blocks=1024&block_size=16.")
BENCH = typer.Option("--bench", help="Take the pod's speeds from `octavo bench latency --json` reports; repeatable.")
MAX_REPLICAS = typer.Option(min=1, help="maxReplicas of every policy.")
MIN_REPLICAS = typer.Option(min=0, help="minReplicas of every policy.")
NODES = typer.Option(min=1, help="Pods that the cluster has room for.")
SECONDS = typer.Option(min=0.0, help="Only the beginning of the trace; 0: all of it.")
LOAD = typer.Option(min=1, help="Every request so many times.")
FAULT = typer.Option("--fault", help="A fault run by its name, or list; it brings its own trace.")
OWN_REMOVAL = typer.Option("--own-removal", help="Take pods away as each project does, not as Octavo does.")
ROUTING = typer.Option("--routing", help="fewest, prefix-aware, least-load, round-robin, consistent.")
JOBS = typer.Option("--jobs", min=0, help="Processes; 0: one a processor.")


def simulate(
    trace: Annotated[str, TRACE] = "diurnal",
    policy: Annotated[list[str] | None, POLICY] = None,
    cold_start: Annotated[float, COLD_START] = 120.0,
    slo_ttft: Annotated[float, SLO_TTFT] = 2.0,
    slo_itl: Annotated[float, SLO_ITL] = 0.0,
    sweep: Annotated[bool, SWEEP] = False,
    seeds: Annotated[int, SEEDS] = 1,
    out: Annotated[Path | None, OUT] = None,
    json_file: Annotated[Path | None, JSON_FILE] = None,
    pod: Annotated[str, POD] = "",
    bench: Annotated[list[Path] | None, BENCH] = None,
    max_replicas: Annotated[int, MAX_REPLICAS] = 32,
    min_replicas: Annotated[int, MIN_REPLICAS] = 1,
    nodes: Annotated[int, NODES] = 64,
    seconds: Annotated[float, SECONDS] = 0.0,
    load: Annotated[int, LOAD] = 1,
    fault: Annotated[str, FAULT] = "",
    own_removal: Annotated[bool, OWN_REMOVAL] = False,
    routing: Annotated[str, ROUTING] = "fewest",
    jobs: Annotated[int, JOBS] = 0,
) -> None:
    """Judge scaling policies on a trace: the share of requests that kept the objective, and the GPU-hours it took."""
    try:
        import simpy  # noqa: F401
    except ImportError:
        print("octavo simulate needs SimPy: pip install 'octavo[simulate]'", file=sys.stderr)
        raise typer.Exit(1) from None
    from .calibrate import Calibration, from_bench, from_scripted
    from .cell import Cell
    from .faultruns import FAULT_RUNS, fault_cell
    from .policy import Bounds
    from .result import Objective
    from .routing import ROUTERS

    if fault == "list":
        print("\n".join(f"{name} ({source})" for name, (source, _) in FAULT_RUNS.items()))
        return
    _known(fault, FAULT_RUNS, "fault run") if fault else None
    _known(routing, ROUTERS, "routing policy")
    if min_replicas > max_replicas:
        raise typer.BadParameter(f"--min-replicas ({min_replicas}) is above --max-replicas ({max_replicas})")
    policies = _policies(policy)
    try:
        calibration = from_scripted(pod) if pod else Calibration()
        calibration = from_bench(bench, calibration) if bench else calibration
        cell = Cell(
            source=trace,
            cold_start=cold_start,
            objective=Objective(slo_ttft, slo_itl or math.inf),
            calibration=calibration,
            bounds=Bounds(min_replicas, max_replicas),
            nodes=nodes,
            seconds=seconds,
            load=load,
            own_removal=own_removal,
            routing=routing,
        )
        cell = fault_cell(fault, cell) if fault else cell
        cell.trace(0).checked_block_size(calibration.block_size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _compare(cell, policies, seeds, sweep, jobs, out, json_file)


def _known(name: str, names: Any, what: str) -> None:
    if name not in names:
        raise typer.BadParameter(f"there is no {what} {name!r}: choose from {', '.join(names)}")


def _policies(wanted: list[str] | None) -> list[str]:
    from .catalogue import ENTRIES, OURS

    names = wanted or [OURS]
    if "all" in names:
        return list(ENTRIES)
    for name in names:
        _known(name, ENTRIES, "policy")
    return list(dict.fromkeys(names))


def _compare(
    cell: Any, policies: list[str], seeds: int, sweep: bool, jobs: int, out: Path | None, json_file: Path | None
) -> None:
    """Make the runs, print the tables, write what is asked for."""
    from rich.console import Console

    from .report import as_json, comparison_table, comparisons, table, write_json
    from .sweep import jobs_of, run_all, spreads

    began = time.monotonic()
    runs = run_all(jobs_of(cell, policies, range(seeds), sweep=sweep), jobs, _progress(began))
    found = spreads(runs)
    compared = comparisons(found) if sweep else []
    console = Console()
    wide = console if console.is_terminal else Console(width=160)
    wide.print(table(cell, found))
    if compared:
        wide.print(comparison_table(cell, compared))
    content = as_json(cell, found, compared)
    if json_file is not None:
        write_json(json_file, content)
    if out is not None:
        _write_folder(out, cell, policies, found, content, sweep)
        wide.print(f"written to {out}", highlight=False)


def _progress(began: float) -> Any:
    """Return what tells of finished runs on standard error, at most once a second."""
    last = [began]

    def told(done: int, of: int, run: Any) -> None:
        now = time.monotonic()
        if done < of and now - last[0] < 1.0:
            return
        last[0] = now
        left = (now - began) / done * (of - done)
        print(
            f"{done}/{of} runs, about {left:.0f} s left; last: {run.policy} at {run.value:g}, "
            f"{run.attainment:.2%} kept, {run.gpu_hours:.2f} GPU-hours",
            file=sys.stderr,
            flush=True,
        )

    return told


def _write_folder(out: Path, cell: Any, policies: list[str], found: Any, content: Any, sweep: bool) -> None:
    from .catalogue import ENTRIES
    from .report import curve_picture, name_of, timeline, write_json

    out.mkdir(parents=True, exist_ok=True)
    stem = f"{name_of(cell)}-{cell.cold_start:g}s"
    results = {policy: cell.run(policy, ENTRIES[policy].default, 0) for policy in policies}
    (out / f"{stem}.svg").write_text(timeline(cell, results))
    if sweep:
        (out / f"{stem}-curves.svg").write_text(curve_picture(cell, found))
    write_json(out / f"{stem}.json", content)
