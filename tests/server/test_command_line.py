"""The command line: what is refused at the flag, with a sentence that names the option."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octavo_engine.cli import app
from octavo_engine.commands.api_key import read_api_key


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


CLIENTS = (["chat", "http://127.0.0.1:1"], ["bench", "serve", "http://127.0.0.1:1"])


@pytest.mark.parametrize("command", CLIENTS, ids=" ".join)
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read (No such file or directory): give a file that holds one API key."),
        (b"\xff\xfe", "is no text: give a file"),
        (b"", "holds nothing: give a file"),
        (b" \n", "holds nothing: give a file"),
        (b"secret\nsecret\n", "holds more than one line: give a file"),
        (b"secret key", "holds a space or a character that is not ASCII"),
        ("sécret".encode(), "holds a space or a character that is not ASCII"),
        (b"secret\x00", "holds a space or a character that is not ASCII"),
    ],
)
def test_a_key_file_that_holds_no_key_is_one_sentence(
    command: list[str], content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    """Nothing is asked of the server, and nothing of the file is shown."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    done = CliRunner().invoke(app, [*command, "--api-key-file", str(file)])
    assert done.exit_code == 2, done.output
    said = words(done.output)
    assert "Invalid value for '--api-key-file'" in said
    assert sentence.replace(" ", "") in said.replace(" ", "")  # a long path is broken into lines anywhere
    assert "secret" not in said


def test_a_key_variable_that_holds_no_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sécret")
    done = CliRunner().invoke(app, ["chat"])
    assert done.exit_code == 2
    assert "Invalid value for 'OPENAI_API_KEY': The variable OPENAI_API_KEY holds a space or" in words(done.output)
    assert "cret" not in words(done.output)


@pytest.mark.parametrize(
    ("content", "key"), [(b"secret", "secret"), (b"\n secret\r\n", "secret"), (b"\xef\xbb\xbfsecret\n", "secret")]
)
def test_a_key_is_read_without_what_editors_add(content: bytes, key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    assert read_api_key(tmp_path / "key") == key


@pytest.mark.parametrize(("value", "key"), [(None, ""), ("", ""), (" secret\n", "secret")])
def test_without_a_file_the_variable_is_read(value: str | None, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("OPENAI_API_KEY", value)
    assert read_api_key(None) == key


def test_serving_says_at_once_that_it_starts() -> None:
    """Before the heavy imports: they are made to fail, and the line is there nevertheless."""
    script = "import sys; sys.modules['octavo_engine.commands.serve'] = None; from octavo_engine.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", script, "serve", "scripted://"], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("octavo serve: starting the engine for scripted://\n")
    assert "ModuleNotFoundError" in done.stderr
