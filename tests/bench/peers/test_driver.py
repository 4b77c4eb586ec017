"""A driver's process: answers, errors and deaths are each one sentence, and what it prints is not an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_engine.bench.peers import driver
from octavo_engine.bench.peers.driver import Answer, DriverProcess, read_answer, timing
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.workload import Item

LOG = Path("run.log")
ITEMS = [Item((1, 2, 3), 4), Item((5,), 2)]

# A peer of three lines: what drivers/with_*.py are for others' engines.
ECHO = """
import os, subprocess, sys
def start(settings):
    print("loading", settings["model"])
    os.write(1, b"noise of native code\\n")
    return {"echo": "1.0"}, run
def run(requests):
    if requests[0]["max_tokens"] == 13:
        raise ValueError("13 is out")
    if requests[0]["max_tokens"] == 14:
        os._exit(3)
    if requests[0]["max_tokens"] == 15:
        subprocess.run([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"])
    tokens = sum(request["max_tokens"] for request in requests)
    times = {"seconds": 2.0, "first_token_seconds": 0.5}
    return {**times, "output_tokens": tokens, "decode_tokens": tokens - len(requests)}
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    made = Environment(tmp_path, "echo")
    (made.venv / "bin").mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "with_echo.py").write_text(ECHO)
    monkeypatch.setattr(made, "variables", lambda extra=None: {"PYTHONPATH": str(modules)})
    return made


def test_a_peer_runs_one_workload_after_the_other(environment):
    with DriverProcess("Echo", environment, "with_echo", {"model": "m"}) as echo:
        assert echo.versions == {"echo": "1.0"}
        first, second = echo.run(ITEMS), echo.run(ITEMS[1:])
    assert (first.prompt_tokens, first.output_tokens, first.decode_tokens) == (4, 6, 4)
    assert (first.seconds, first.first_token_seconds) == (2.0, 0.5)
    assert (second.prompt_tokens, second.output_tokens) == (1, 2)
    log = (environment.folder / "run.log").read_text()
    assert "loading m" in log
    assert "noise of native code" in log


@pytest.mark.parametrize(
    ("tokens", "said"), [(13, "Echo failed: ValueError: 13 is out"), (14, "Echo ended before it answered")]
)
def test_a_peer_that_fails_says_so_in_one_sentence(environment, tokens, said):
    with DriverProcess("Echo", environment, "with_echo", {"model": "m"}) as echo:
        with pytest.raises(PeerError, match=said):
            echo.run([Item((1,), tokens)])
        with pytest.raises(PeerError, match="Echo ended"):
            echo.run(ITEMS)


def test_a_peer_ends_with_all_it_started_when_nobody_asks_any_more(environment):
    """As when the bench is killed: only the end of its input tells the driver. Its log ends with the last process."""
    read, write = os.pipe()
    command = [environment.python, driver._SCRIPT, "with_echo", '{"model": "m"}']
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=write,
        env=environment.variables(),
        start_new_session=True,
    ) as process:
        os.close(write)
        assert b"ready" in process.stdout.readline()
        process.stdin.write(b'{"requests": [{"prompt": [1], "max_tokens": 15}]}\n')
        process.stdin.flush()
        with os.fdopen(read, "rb") as log:
            while b"here" not in log.readline():
                pass
            process.stdin.close()
            log.read()
        assert process.wait() == -signal.SIGKILL


def test_a_peer_that_does_not_load_says_so(environment):
    with pytest.raises(PeerError, match="Echo failed: KeyError: 'model'"):
        DriverProcess("Echo", environment, "with_echo", {})


def test_a_missing_interpreter_is_a_sentence(tmp_path):
    environment = Environment(tmp_path, "gone")
    environment.folder.mkdir()
    with pytest.raises(
        PeerError, match=f"cannot be started: No such file or directory; remove {environment.folder} and"
    ):
        DriverProcess("Gone", environment, "with_echo", {})


def test_answers_are_read():
    line = json.dumps({"event": "result", "seconds": 1.5, "output_tokens": 6, "decode_tokens": 4})
    answer = read_answer(line, "Peer", LOG)
    assert timing(answer, ITEMS, "Peer").seconds == 1.5
    assert timing(answer, ITEMS, "Peer").first_token_seconds is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "Peer ended before it answered"),
        ("Traceback (most recent call last)\n", "which is no answer"),
        (json.dumps({"event": "error", "detail": "no memory."}), r"Peer failed: no memory \(see run.log\)\."),
    ],
)
def test_what_is_no_result_is_one_sentence(line, said):
    with pytest.raises(PeerError, match=said):
        read_answer(line, "Peer", LOG)


@pytest.mark.parametrize(("seconds", "first"), [(0.0, None), (1.0, 0.0), (1.0, 1.0), (-1.0, None)])
def test_times_that_cannot_be_are_no_figures(seconds, first):
    answer = Answer("result", seconds=seconds, output_tokens=6, first_token_seconds=first)
    with pytest.raises(PeerError, match="gave times that cannot be"):
        timing(answer, ITEMS, "Peer")


def test_a_peer_that_did_less_work_is_no_comparison():
    with pytest.raises(PeerError, match="gave 5 tokens where 6 were asked for"):
        timing(Answer("result", seconds=1.0, output_tokens=5), ITEMS, "Peer")
