"""A peer's environment: made anew in place of its own, and never in place of anything else."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from octavo_engine.bench.peers import environment as module
from octavo_engine.bench.peers.environment import Environment, last_line, size
from octavo_engine.bench.peers.errors import PeerError


def test_a_folder_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "vllm" / "work.txt"
    work.parent.mkdir()
    work.write_text("mine")
    with pytest.raises(PeerError, match=r"no environment of Octavo's.* move it away, or name another folder"):
        Environment(tmp_path, "vllm").create()
    assert work.read_text() == "mine"


def test_an_environment_of_ours_is_made_anew_half_installed_or_whole(tmp_path: Path) -> None:
    environment = Environment(tmp_path, "peer")
    environment.create()
    left = environment.folder / "half"
    left.touch()
    environment.create()
    assert not left.exists()
    where = Path(environment.call(sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())").strip())
    assert where.parent == environment.folder
    environment.finish({"peer": "1"})
    assert not where.exists()
    environment.create()
    assert environment.versions() is None
    assert environment.python.exists()


def test_a_relative_place_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = Environment(Path("here"), "peer")
    environment.create()
    assert environment.python.is_absolute()
    assert os.access(tmp_path / "here" / "peer" / "venv" / "bin" / "python", os.X_OK)


def test_an_installation_tells_each_step_and_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends once it was told that it runs, what it printed meanwhile."""
    monkeypatch.setattr(module, "_TELL_EVERY_SECONDS", 0.0)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    told = threading.Event()
    said = []

    def say(text: str) -> None:
        said.append(text)
        if text.endswith("[1/2] half of it") and not told.is_set():
            told.set()
            gate.write_text("go on")

    environment = Environment(tmp_path, "peer", say)
    environment.folder.mkdir()
    environment.step("building")
    waits = f"print('[1/2] half of it', flush=True); open({str(gate)!r}).read(); print('[2/2] done')"
    assert environment.call(sys.executable, "-c", waits) == "[1/2] half of it\n[2/2] done\n"
    assert said[0] == "peer: building"
    assert any(line.startswith("peer: 0 MB, 0 s: ") for line in said)
    assert environment.log.read_text().endswith("[1/2] half of it\n[2/2] done\n")


def test_what_a_command_prints_need_be_no_text(tmp_path: Path) -> None:
    environment = Environment(tmp_path, "peer")
    environment.folder.mkdir()
    printed = environment.call(sys.executable, "-c", "import os; os.write(1, b'caf\\xe9\\n')")
    assert printed == "caf\N{REPLACEMENT CHARACTER}\n"
    assert environment.call(sys.executable, "-c", "print('second')") == "second\n"
    assert environment.log.read_bytes().count(b"$ ") == 2


def test_an_environments_size_and_the_logs_last_line(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 1000)
    (tmp_path / "deep" / "gone").symlink_to(tmp_path / "nowhere" / "at" / "all")
    assert 1000 < size(tmp_path) < 2000
    log = tmp_path / "log"
    log.write_text("first\n 10%\r 20%\r\n\n")
    assert last_line(log) == "20%"
    log.write_text("x" * 9000)
    assert len(last_line(log)) < 120
    log.write_text("")
    assert last_line(log) == ""
