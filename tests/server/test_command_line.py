"""The command line: what is refused at the flag, with a sentence that names the option."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from octavo_engine.cli import app


def words(text: str) -> str:
    """Return the text without colours, frames and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("option", ["--drain-propagation", "--drain-timeout", "--shutdown-timeout", "--health-timeout"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "-inf", "soon"])
def test_seconds_that_no_clock_reaches_are_refused_at_the_flag(option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["serve", "scripted://", option, value])
    assert done.exit_code == 2
    assert re.search(rf"Invalid value for [^:]*'{option}'", words(done.output))


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_the_drain_command_waits_for_a_number_of_seconds(value: str) -> None:
    done = CliRunner().invoke(app, ["drain", "--timeout", value])
    assert done.exit_code == 2
    assert "Invalid value for '--timeout'" in words(done.output)


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("--max-model-len", "0", "write a number above 0, or 'auto'"),
        ("--max-model-len", "many", "write a number above 0, or 'auto'"),
        ("--kv-cache-memory", "4X", "such as 4G"),
        ("--kv-cache-memory", "-1", "such as 4G"),
    ],
)
def test_what_is_no_size_names_its_option(option: str, value: str, remedy: str) -> None:
    done = CliRunner().invoke(app, ["serve", "scripted://", option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in words(done.output)
    assert remedy in words(done.output)


def test_serving_says_at_once_that_it_starts() -> None:
    """Before the heavy imports: they are made to fail, and the line is there nevertheless."""
    script = "import sys; sys.modules['octavo_engine.commands.serve'] = None; from octavo_engine.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", script, "serve", "scripted://"], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("octavo serve: starting the engine for scripted://\n")
    assert "ModuleNotFoundError" in done.stderr
