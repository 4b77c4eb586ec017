"""Requests that schemathesis makes of the server's own OpenAPI document: how many, how answered, which broke it."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from octavo_engine import contract
from octavo_engine.server.protocol.openapi import OPERATIONS
from tests.server.launch import Server

from .running import PYTHON, run

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
MEANT: Final = 503
"""Nothing began, come again: a refusal, no failure."""
CONFIG: Final = f"""
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "{MEANT}"]
"""
HOOKS: Final = Path(__file__).with_name("schemathesis_hooks.py")
ALL_PHASES: Final = "examples,coverage,fuzzing"
DRAWN: Final = "fuzzing"
"""Without the thousands of cases that go through each field's bounds."""
_LAST_LINES: Final = 60


@dataclass
class Cases:
    """What became of the cases. `faults`: server errors with the request, and what else schemathesis reported."""

    statuses: Counter[int] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Cases that were answered."""
        return self.statuses.total()

    def add(self, other: Cases) -> None:
        """Count another run's, too."""
        self.statuses += other.statuses
        self.operations += other.operations
        self.faults += other.faults


def send(server: Server, per_operation: int, seed: int, phases: str = ALL_PHASES) -> Cases:
    """Run schemathesis once, with at most so many drawn cases of each operation."""
    with tempfile.TemporaryDirectory() as folder:
        config, told = Path(folder) / "schemathesis.toml", Path(folder) / "cases.jsonl"
        config.write_text(CONFIG)
        told.touch()
        ran = run(
            [
                *(PYTHON, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config), "run"),
                *(server.url + contract.PATH_OPENAPI, "--seed", str(seed), "--max-examples", str(per_operation)),
                *("--phases", phases, "--checks", ",".join(CHECKS), "--continue-on-failure"),
                *("--no-shrink", "--suppress-health-check", "all", "--request-timeout", "120", "--warnings", "off"),
                *("--generation-database", "none", "--workers", "2"),
            ],
            folder=Path(folder),  # it leaves its own files where it runs
            environment={"SCHEMATHESIS_HOOKS": str(HOOKS), "OCTAVO_SCHEMATHESIS_CASES": str(told)},
        )
        cases = count(told.read_text())
    if ran.code:
        cases.faults.append("\n".join([f"schemathesis ended with {ran.code}", *ran.output.splitlines()[-_LAST_LINES:]]))
    return cases


def count(lines: str) -> Cases:
    """Count what the hooks wrote down."""
    cases = Cases()
    for line in map(json.loads, lines.splitlines()):
        cases.statuses[line["status"]] += 1
        cases.operations[line["operation"]] += 1
        if line["status"] >= 500 and line["status"] != MEANT:
            cases.faults.append(f"{line['operation']} answered {line['status']}: {line['answer']} to {line['request']}")
    return cases


def send_at_least(server: Server, wanted: int, seed: int, phases: str = ALL_PHASES) -> Cases:
    """Run it, each time from another seed, until so many cases were answered, something broke or nothing was sent."""
    bodies = sum(operation.table is not None for operation in OPERATIONS)
    cases = Cases()
    while not cases.faults and cases.total < wanted:
        more = send(server, -(-(wanted - cases.total) // bodies), seed, phases)
        cases.add(more)
        if not more.total:
            break
        seed += 1
    return cases
