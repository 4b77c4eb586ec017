"""A report says the same to a person and to a program, whatever its texts and figures hold."""

import io
import json
import math

from rich.console import Console

from octavo_engine.bench.machine import describe_machine
from octavo_engine.bench.report import Report, Table, show, write_json

TEXT = 'the server answered 400: {"loc": ["body", "[/health]"]} [bold]'


def report(figures=None):
    table = Table(TEXT, (TEXT, "p50"), [(TEXT, "1")], TEXT)
    return Report("t", describe_machine(), {"model": TEXT}, [table], figures)


def test_brackets_are_text():
    out = io.StringIO()
    show(report(), Console(file=out, width=400, markup=False))
    assert out.getvalue().count("[/health]") == 5
    assert out.getvalue().count("[bold]") == 5


def test_infinity_is_a_word_and_null_is_what_was_not_measured(tmp_path):
    file = tmp_path / "report.json"
    write_json(file, report({"a": [math.inf, 1.5], "b": math.nan, "c": None, "d": 3}))
    assert json.loads(file.read_text())["figures"] == {"a": ["infinite", 1.5], "b": None, "c": None, "d": 3}
