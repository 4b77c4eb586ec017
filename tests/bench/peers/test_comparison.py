"""`octavo bench peers` from its arguments to its end, with peers and an engine of ours that are scripted."""

from __future__ import annotations

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from octavo_engine.bench.peers import ours, registry
from octavo_engine.bench.peers.contender import Contender
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.ours import OwnEngine
from octavo_engine.bench.peers.point import DECODE, PREFILL_512, Timing
from octavo_engine.cli import app
from tests.model.conftest import write_random_llama
from tests.model.test_gguf import write_gguf

RUNS_BEFORE_THE_FIRST_ROUND = 2
"""Everybody is warmed up at the start, and once at each point."""


class Engine:
    """A run takes two seconds, the first token one; something else happens in run number `at`."""

    def __init__(self, at=0, then=None) -> None:
        self.runs, self.at, self.then = 0, at, then

    def run(self, items):
        self.runs += 1
        if self.runs == self.at:
            self.then()
        output = sum(item.max_tokens for item in items)
        return Timing(2.0, sum(len(item.prompt) for item in items), output, output - len(items), 1.0)

    def close(self):
        """Nothing is loaded."""


class Ours(Engine, OwnEngine):
    harness = None

    def describe(self):
        return "dtype=scripted"


class Peer:
    def __init__(self, name, engine, fails="") -> None:
        self.name, self.title, self.engine, self.fails = name, name.title(), engine, fails

    def contenders(self, environment, files, settings):
        if self.fails:
            raise PeerError(self.fails)
        points = frozenset({DECODE.name, PREFILL_512.name})
        return [Contender(f"{self.name}:file", self.title, points, lambda: self.engine)]

    def server(self, environment, files, settings, port):
        return None


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Run the command; return its result and the JSON it left."""
    model, file = tmp_path / "m.gguf", tmp_path / "report.json"
    write_gguf(write_random_llama(tmp_path / "hf"), model)

    def run(own, *peers, more=("--perplexity-windows", "0")):
        points = frozenset({DECODE.name, PREFILL_512.name})
        monkeypatch.setattr(
            ours, "contenders", lambda configs, load: [Contender("octavo:file", "Octavo, file", points, lambda: own)]
        )
        monkeypatch.setattr(registry, "PEERS", peers)
        for peer in peers:
            environment = Environment(tmp_path, peer.name)
            environment.folder.mkdir(exist_ok=True)
            environment.finish({peer.name: "1.0"})
        arguments = [str(model), "--environments", str(tmp_path), "--json", str(file), "--repeat", "2"]
        arguments += ["--point", "decode", "--point", "prefill", *more]
        result = CliRunner().invoke(app, ["bench", "peers", *arguments])
        return result, json.loads(file.read_text()) if file.is_file() else None

    return run


def rounds(found):
    return {(one["point"], one["contender"]): len(one["rounds"]) for one in found["figures"]["in_process"]["figures"]}


def test_a_whole_comparison(compare):
    result, found = compare(Ours(), Peer("quick", Engine()), more=("--perplexity-windows", "0", "--served"))
    assert result.exit_code == 0, result.output
    assert found["complete"] is True
    assert set(rounds(found).values()) == {2}
    assert found["configuration"]["quick"] == "1.0"
    assert found["configuration"]["octavo:file"] == "dtype=scripted"
    (left,) = found["figures"]["left_out"]
    assert (left["name"], left["of"], left["why"]) == ("quick", "of the servers", "it has no server.")
    assert DECODE.title in result.stdout
    assert "octavo bench:" not in result.stderr
    assert "Incomplete" not in result.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_was_measured(compare, number, code):
    """In the second round of the first point, before our turn."""
    interrupted = Ours(RUNS_BEFORE_THE_FIRST_ROUND + 2, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    result, found = compare(interrupted, Peer("quick", Engine()))
    assert result.exit_code == code
    assert found["complete"] is False
    assert rounds(found) == {(DECODE.title, "octavo:file"): 1, (DECODE.title, "quick:file"): 1}
    assert DECODE.title in result.stdout
    assert "octavo bench: Interrupted: what was measured until then is above and in " in result.stderr
    assert "Traceback" not in result.output
    assert signal.getsignal(signal.SIGTERM) == before


def fail():
    raise PeerError("it ran out of memory.")


def test_a_peer_that_fails_or_cannot_be_prepared_is_left_out_alone(compare):
    peers = [
        Peer("quick", Engine()),
        Peer("weak", Engine(RUNS_BEFORE_THE_FIRST_ROUND + 2, fail)),
        Peer("odd", None, "no."),
    ]
    result, found = compare(Ours(), *peers)
    assert result.exit_code == 0
    assert found["complete"] is True
    assert rounds(found) == {
        (DECODE.title, "octavo:file"): 2,
        (DECODE.title, "quick:file"): 2,
        (DECODE.title, "weak:file"): 1,
        (PREFILL_512.title, "octavo:file"): 2,
        (PREFILL_512.title, "quick:file"): 2,
    }
    assert [(one["name"], one["of"], one["why"]) for one in found["figures"]["left_out"]] == [
        ("odd", "", "no."),
        ("weak:file", f"from {DECODE.title} on", "it ran out of memory."),
    ]
    assert "it ran out of memory." in result.stdout


def test_an_engine_of_ours_that_fails_is_a_failure_with_everybody_elses_figures(compare):
    own = Ours(RUNS_BEFORE_THE_FIRST_ROUND + 2, fail)
    result, found = compare(own, Peer("quick", Engine()), Peer("slow", Engine()))
    assert result.exit_code == 1
    assert found["complete"] is True
    assert rounds(found)[PREFILL_512.title, "slow:file"] == 2
    assert "octavo bench: Figures of Octavo's own are missing: see what is left out." in result.stderr


def test_a_perplexity_that_cannot_be_told_takes_no_figure_with_it(compare, monkeypatch):
    def no_tokeniser(harness, windows):
        raise ValueError("the model has no tokenizer.json.")

    monkeypatch.setattr("octavo_engine.commands.bench_options.perplexity", no_tokeniser)
    result, found = compare(Ours(), Peer("quick", Engine()), more=())
    assert result.exit_code == 1
    assert set(rounds(found).values()) == {2}
    assert found["figures"]["left_out"][0]["of"] == "of the perplexities"


def test_who_takes_part_in_none_of_the_points_is_not_started(compare):
    idle = Engine()
    peer = Peer("idle", idle)
    peer.contenders = lambda *rest: [Contender("idle:file", "Idle", frozenset({"batch"}), lambda: idle)]
    result, found = compare(Ours(), peer)
    assert (result.exit_code, found, idle.runs) == (1, None, 0)
    assert "octavo bench: Nothing could be compared: no peer that is here takes part in what was" in result.stderr


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(compare, tmp_path):
    (tmp_path / "report.json").mkdir()
    own = Ours()
    result, _ = compare(own, Peer("quick", Engine()))
    assert result.exit_code == 2
    assert "cannot be written (Is a directory)" in " ".join(result.stderr.replace("│", " ").split())
    assert own.runs == 0
