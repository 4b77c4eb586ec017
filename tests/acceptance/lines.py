"""Each acceptance line of the first complete Octavo as the commands that prove it and the figures they print."""

from __future__ import annotations

import json
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from . import faults
from .running import PYTHON, REPOSITORY, Ran, Row, collected, pytest, run

PROBE_SECONDS: Final = 0.100
ITL_FACTOR: Final = 2.0
MEMORY_MEGABYTES: Final = 300.0
COLD_TOKENS: Final = 512 + 64 * 16


def line_1() -> Iterator[Row]:
    """A fresh clone, `make demo` twice, `make demo-down`, `make clean`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "demo.json"
        ran = run([PYTHON, "-m", "tests.acceptance.demo", "--json", str(report)])
        facts = json.loads(report.read_text()) if report.exists() else {}
    figure = ", ".join(f"{name} {value}" for name, value in facts.items()) or ran.output[-300:]
    yield _row(1, ran, figure)


def line_2() -> Iterator[Row]:
    """SmolLM2's answer from a pod, and greedy output equal to that of `transformers`."""
    ran = run([PYTHON, "-m", "tests.model.exactness"])
    yield _row(2, ran, f"{ran.line('tokens equal')}; {ran.line('prompts equal')}")
    yield _tests(2, "tests/e2e/test_real_model.py")


def line_3() -> Iterator[Row]:
    """Growing, shrinking, an external scaler and every switch of modes: with the real model, then scripted."""
    ran = run([PYTHON, "-m", "tests.e2e", "scaling"])
    printed = [line.strip() for line in ran.output.splitlines() if " > " in line or "streams" in line]
    yield _row(3, ran, "; ".join(printed) or ran.output[-300:])
    yield _tests(3, "tests/e2e/test_scaling.py")


def line_4() -> Iterator[Row]:
    """The eight combinations of the baseline switches."""
    yield _tests(4, "tests/worker/test_switches.py")


def line_5() -> Iterator[Row]:
    """The random walk over a tiny pool, and identical cold prompts."""
    ran = run([PYTHON, "-m", "tests.core.random_walk", "--operations", "10000"])
    cold = ran.line("identical cold prompts")
    found = re.search(r": (\d+) tokens computed", cold)
    kept = found is not None and int(found[1]) <= COLD_TOKENS
    yield _row(5, ran, f"{ran.line('operations over')}; {cold}", passed=ran.code == 0 and kept)


def line_6() -> Iterator[Row]:
    """Deletion, edits, somebody else's Service, and an idle minute."""
    yield _tests(6, "tests/e2e/test_lifecycle.py")
    ran = run([PYTHON, "-m", "tests.e2e", "idle", "--seconds", "60"])
    yield _row(6, ran, ran.line("idle seconds"))


def line_7() -> Iterator[Row]:
    """Huge prompts hold up neither probes nor streams."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "overload.json"
        ran = run([PYTHON, "-m", "tests.server.overload", "--json", str(report)])
        facts: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    if not facts:
        yield _row(7, ran, ran.output[-300:], passed=False)
        return
    probe, growth = facts["probe_max"], facts["memory_growth_megabytes"]
    factor = facts["loaded_itl_p99"] / facts["quiet_itl_p99"]
    figure = (
        f"{facts['probes']} probes, slowest {probe * 1000:.0f} ms; ITL p99 {factor:.2f} × quiet; "
        f"memory + {growth:.0f} MB; answers {facts['answers']}; "
        f"the machine woke a mere sleeper up to {facts['machine_delay_max'] * 1000:.0f} ms late"
    )
    kept = probe <= PROBE_SECONDS and factor <= ITL_FACTOR and growth < MEMORY_MEGABYTES
    yield _row(7, ran, figure, passed=ran.code == 0 and kept)
    yield _tests(7, "tests/server/test_refusals.py", "-k", "huge_prompts")


def line_8() -> Iterator[Row]:
    """Every known fault's tests: they exist, and pass."""
    found = collected("tests")
    if absent := faults.missing(found):
        yield Row(8, "pytest --collect-only", f"no such tests: {absent}", False, 0.0)
    for entry, (title, names) in faults.TESTS.items():
        tests = faults.tests_of(entry, found)
        if tests:
            ran = _pytest_by_name(tests)
            yield _row(8, ran, f"{entry} {title}: {_summary(ran)}; {', '.join(names)}")


def line_9() -> Iterator[Row]:
    """Import contracts, types, no skipped test, restricted Pod Security."""
    imports = run([str(Path(PYTHON).with_name("lint-imports"))])
    yield _row(9, imports, imports.line("Contracts:"))
    types = run([str(Path(PYTHON).with_name("mypy"))])
    yield _row(9, types, types.line("Success|Found"))
    yield _tests(9, "tests/e2e/test_pod_security.py")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        ran = pytest(f"--junitxml={report}")
        suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
    if suite is None:
        yield _row(9, ran, ran.output[-300:], passed=False)
        return
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    figure = ", ".join(f"{value} {name}" for name, value in counts.items())
    yield _row(9, ran, figure, passed=ran.code == 0 and counts["skipped"] == 0)


LINES: Final[dict[int, Callable[[], Iterator[Row]]]] = {
    1: line_1,
    2: line_2,
    3: line_3,
    4: line_4,
    5: line_5,
    6: line_6,
    7: line_7,
    8: line_8,
    9: line_9,
}


def _row(line: int, ran: Ran, figure: str, *, passed: bool | None = None) -> Row:
    return Row(line, ran.command, figure, ran.code == 0 if passed is None else passed, ran.seconds)


def _tests(line: int, *arguments: str) -> Row:
    ran = pytest(*arguments)
    return _row(line, ran, _summary(ran))


def _pytest_by_name(tests: list[str]) -> Ran:
    """Run tests by their functions: the ids of parameters may hold what a command line cannot."""
    functions = sorted({test.split("[")[0] for test in tests})
    return pytest(*functions)


def _summary(ran: Ran) -> str:
    """Return pytest's last word, and the names of what failed."""
    last = ran.output.strip().splitlines()[-1] if ran.output.strip() else "nothing printed"
    failed = [line.split(" - ")[0] for line in ran.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "; ".join([last, *failed])


assert REPOSITORY.joinpath("pyproject.toml").exists()
