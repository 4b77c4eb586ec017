"""Acceptance lines of the hardened engine as what is done to it, each figure beside its goal.

The short form does the same for seconds. What must hold at once holds there, too; what needs its time is told only.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Final, NamedTuple

from tests.model import exactness
from tests.server.launch import serving

from . import engine_kills, likelihoods, schema_cases, storm
from .determinism import table
from .determinism.trying import Cell, digests_by_precision
from .engine_kills import Trial
from .figures import Figure, failed
from .rough_clients import ACTS
from .running import PYTHON, Ran, pytest, run
from .schema_cases import Cases
from .steady_streams import SteadyStreams
from .storm import Aftermath

SCRIPTED: Final = "scripted://?step=1ms&blocks=2048&eos=0.02"
SERVED: Final = ("--max-model-len", "256", "--drain-propagation", "0")
MOST_GROWTH: Final = 0.05
SHOWN_FAULTS: Final = 3
SHOWN_CHARACTERS: Final = 600


class Settings(NamedTuple):
    """How the lines are run. `model`: that line 2 serves. `progress`: where line 3 keeps what it has finished."""

    short: bool = False
    seed: int = 0
    model: str = SCRIPTED
    progress: Path | None = None


def line_1(settings: Settings) -> Iterator[Figure]:
    """OpenAI's own client against a server."""
    yield _passed(1, pytest("tests/server/test_openai_client.py", "tests/server/test_embeddings.py"))


def line_2(settings: Settings) -> Iterator[Figure]:
    """Cases from the server's own OpenAPI document; four seeded streams beside them."""
    began, wanted = time.monotonic(), 300 if settings.short else 5_000
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), settings.model, *SERVED) as server:
        streams = SteadyStreams(server)
        with streams:
            phases = schema_cases.DRAWN if settings.short else schema_cases.ALL_PHASES
            cases = schema_cases.send_at_least(server, wanted, settings.seed, phases)
    yield from _timed(began, of_cases(cases, wanted, streams.ended, streams.busy, streams.faults))


def line_3(settings: Settings) -> Iterator[Figure]:
    """The same requests under every circumstance, for every precision and instruction set."""
    cells = table.fill(settings.short, settings.seed, settings.progress)
    table.show(cells)
    yield from of_cells(cells)


def line_4(settings: Settings) -> Iterator[Figure]:
    """A storm of 64 clients of every kind, and what is left of it."""
    began = time.monotonic()
    seconds, warm_up = (20.0, 8.0) if settings.short else (600.0, 60.0)
    with tempfile.TemporaryDirectory() as folder:
        left = storm.weather(Path(folder), seconds, warm_up, settings.seed)
    # After seconds a process is not yet what it is going to be.
    yield from _timed(began, of_storm(left, judge_memory=not settings.short))


def line_5(settings: Settings) -> Iterator[Figure]:
    """The engine process killed, and stopped, at random moments."""
    began, times = time.monotonic(), 2 if settings.short else 20
    with tempfile.TemporaryDirectory() as folder:
        trial = engine_kills.try_out(Path(folder), times, settings.seed)
    yield from _timed(began, of_kills(trial, times))


def line_6(settings: Settings) -> Iterator[Figure]:
    """Every architecture's logits, and real weights' greedy texts, beside `transformers`."""
    yield _passed(6, pytest("tests/model/test_against_transformers.py", "tests/model/test_adapters.py"))
    for model in () if settings.short else exactness.MODELS:
        ran = run([PYTHON, "-m", "tests.model.exactness", "--model", model])
        shown = ran.line("tokens equal")
        what = f"greedy tokens of {model} before a first difference"
        yield Figure(6, what, shown, "all", ran.code == 0, ran.seconds) if shown else failed(6, ran)


def line_7(settings: Settings) -> Iterator[Figure]:
    """lm-eval's log-likelihoods over HTTP and by `transformers`, on the same float32 weights."""
    if settings.short:
        yield Figure(7, "log-likelihoods of lm-eval", "in the long form only", "told", None)
        return
    ran = run([PYTHON, "-m", "tests.acceptance.likelihoods"])
    shown = ran.line("largest difference")
    if not shown:
        yield failed(7, ran)
        return
    goal = f"≤ {likelihoods.TOLERANCE:.0e}, and the same greedy choices"
    yield Figure(7, f"log-likelihoods of {len(likelihoods.PAIRS)} texts", shown, goal, ran.code == 0, ran.seconds)


LINES: Final[dict[int, Callable[[Settings], Iterator[Figure]]]] = {
    1: line_1,
    2: line_2,
    3: line_3,
    4: line_4,
    5: line_5,
    6: line_6,
    7: line_7,
}


# --- From what was seen to figures --------------------------------------------------------------------------------
def of_cases(cases: Cases, wanted: int, ended: Sequence[int], busy: int, differences: list[str]) -> Iterator[Figure]:
    """Yield line 2's figures. `ended`, `busy`, `differences`: of the streams beside the cases."""
    operations = ", ".join(f"{number} × {name}" for name, number in cases.operations.most_common())
    statuses = ", ".join(f"{number} × {status}" for status, number in sorted(cases.statuses.items()))
    yield Figure(2, f"cases ({operations})", str(cases.total), f"≥ {wanted}", cases.total >= wanted)
    yield _none(2, f"server errors and broken promises ({statuses})", cases.faults)
    shown = f"{', '.join(map(str, ended))} ended, {busy} were refused"
    yield Figure(2, "streams beside them", shown, "each ended", all(ended))
    yield _none(2, "streams whose text, logprobs, finish reason or usage were not those in quiet", differences)


def of_cells(cells: Sequence[Cell]) -> Iterator[Figure]:
    """Yield line 3's figures: one for each subject, and what instruction sets have in common."""
    for subject in dict.fromkeys(cell.subject for cell in cells):
        own = [cell for cell in cells if cell.subject == subject]
        wrong = [f"{cell.circumstance}: {cell.difference}" for cell in own if cell.difference]
        figure = _none(3, f"{subject}: circumstances of {len(own)} in which not all is identical", wrong)
        yield figure._replace(seconds=round(sum(cell.seconds for cell in own), 1))
    for precision, digests in digests_by_precision(cells).items():
        if len(digests) > 1:
            shown = f"{len(set(digests))} over {len(digests)}"
            yield Figure(3, f"{precision}: different answers over instruction sets", shown, "told", True)


def of_storm(left: Aftermath, judge_memory: bool = True) -> Iterator[Figure]:
    """Yield line 4's figures."""
    kinds = Counter[str]()
    for (kind, _), number in left.tally.acts.items():
        kinds[kind] += number
    acts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    yield Figure(4, f"what {storm.CLIENTS} clients did", acts, "every kind", kinds.keys() == ACTS.keys())
    yield _none(4, "answers that no client may get", left.tally.faults)
    idle, state = left.idle_seconds, left.state
    yield Figure(4, "idle after the last one left", f"{idle:.2f} s", "≤ 2 s", idle <= storm.IDLE_SECONDS)
    held = f"{state.running}, {state.waiting}, {state.active_blocks}"
    yield Figure(4, "running, waiting, active blocks", held, "0, 0, 0", state.idle)
    books = f"{state.admitted} and {state.ended}"
    yield Figure(4, "admitted, and the sum of outcomes", books, "equal", state.admitted == state.ended)
    sizes = ", ".join(f"{role} {left.before[role] / 1e6:.0f} to {left.after[role] / 1e6:.0f}" for role in left.after)
    what = f"resident memory since the end of a first storm (MB: {sizes})"
    held_growth = left.growth < MOST_GROWTH if judge_memory else None
    yield Figure(4, what, f"{left.growth:+.1%}", f"< {MOST_GROWTH:+.0%}", held_growth)
    yield _none(4, "a fresh request answered otherwise than before", [left.fresh] if left.fresh else [])
    yield _same(4, "the engine process", left.same_engine)
    yield Figure(4, "/health at its slowest", f"{left.tally.slowest_probe:.2f} s", "told", True)


def of_kills(trial: Trial, times: int) -> Iterator[Figure]:
    """Yield line 5's figures."""
    counts = Counter(each.signal.name for each in trial.rounds)
    sent = ", ".join(f"{number} {name}" for name, number in counts.items())
    yield Figure(5, "signals sent", sent, str(times), counts.total() == times)
    most = engine_kills.NOTICED_SECONDS
    for number in (SIGKILL, SIGSTOP):
        slowest = trial.slowest(number)
        yield Figure(5, f"/health fails after {number.name}", f"≤ {slowest:.2f} s", f"≤ {most:.0f} s", slowest <= most)
    streams = ", ".join(f"{number} {kind}" for kind, number in trial.streams.most_common())
    yield _none(5, f"streams that ended without finish reason and without error ({streams})", trial.faults)
    back, limit = max((each.back for each in trial.rounds), default=0.0), engine_kills.BACK_LIMIT
    yield Figure(5, "ready again after that", f"≤ {back:.2f} s", f"< {limit:.0f} s", back < limit)
    yield _same(5, "the API process", trial.same_server)
    state = trial.state
    yield Figure(5, "afterwards", str(state), "idle, all accounted for", state is not None and state.settled)


def _none(line: int, what: str, faults: Sequence[str]) -> Figure:
    """Return a figure that holds if there is nothing to tell; else the first of what there is."""
    shown = "\n".join([str(len(faults)), *(fault[:SHOWN_CHARACTERS] for fault in faults[:SHOWN_FAULTS])])
    return Figure(line, what, shown, "0", not faults)


def _passed(line: int, ran: Ran) -> Figure:
    return Figure(line, ran.command, ran.line(r"passed|failed|error"), "all pass", ran.code == 0, ran.seconds)


def _same(line: int, what: str, same: bool) -> Figure:
    return Figure(line, what, "the same as before" if same else "another one, or none", "the same", same)


def _timed(began: float, figures: Iterable[Figure]) -> Iterator[Figure]:
    seconds = round(time.monotonic() - began, 1)
    return (figure._replace(seconds=seconds) for figure in figures)
