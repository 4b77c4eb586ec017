"""A peer's environment: made anew in place of its own, and never in place of anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo_engine.bench.peers.environment import Environment
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
    environment.finish({"peer": "1"})
    environment.create()
    assert environment.versions() is None
    assert environment.python.exists()


def test_a_relative_place_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = Environment(Path("here"), "peer")
    environment.create()
    assert environment.python.is_absolute()
    assert os.access(tmp_path / "here" / "peer" / "venv" / "bin" / "python", os.X_OK)
