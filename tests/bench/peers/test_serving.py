"""Server against server: each peer's rate is run by it and by us, ours by everybody."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext

import pytest

from octavo_engine.bench.peers import serving
from octavo_engine.bench.peers.contender import ServerCommand
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.notes import LeftOut, Notes
from octavo_engine.bench.peers.peer_server import free_port, peer_server


def test_each_rate_is_run_by_those_it_compares():
    assert serving.plan({"octavo": 3.0, "llamacpp": 1.0, "vllm": 0.5}) == [
        ("llamacpp", "llamacpp"),
        ("octavo", "llamacpp"),
        ("vllm", "vllm"),
        ("octavo", "vllm"),
        ("llamacpp", "octavo"),
        ("vllm", "octavo"),
        ("octavo", "octavo"),
    ]


def never(reason):
    @contextmanager
    def start():
        raise PeerError(reason)
        yield

    return start


@pytest.fixture
def scripted(monkeypatch):
    """Servers that are their own targets, each with its saturation; what is run on them is told, not done."""

    def run(target, items, tell):
        tell(len(items), len(items))
        return target

    monkeypatch.setattr(serving, "saturation", lambda target, *rest: target)
    monkeypatch.setattr(serving, "run", run)
    monkeypatch.setattr(serving, "summarize", lambda load, *rest: load)
    return lambda name, rate: serving.Served(name, f"{name} serve", lambda: nullcontext(rate))


def test_what_is_known_is_handed_on_after_each_saturation_and_each_run(scripted):
    known = []

    def keep(found):
        known.append((len(found.saturations), len(found.runs)))

    serving.measure([scripted("octavo", 3.0), scripted("vllm", 1.0)], 2.0, 1.0, Notes([].append), keep)
    assert known == [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_peer_whose_server_does_not_start_is_left_out(scripted):
    notes = Notes([].append)
    dead = serving.Served("vllm", "vllm serve", never("it ended with 1 before it was ready."))
    servers = [scripted("octavo", 3.0), dead, scripted("llamacpp", 1.0)]
    found = serving.measure(servers, 1.0, 1.0, notes)
    assert found.saturations == {"octavo": 3.0, "llamacpp": 1.0}
    assert len(found.runs) == 4
    assert notes.left_out == [LeftOut("vllm", "vllm serve", "of the servers", "it ended with 1 before it was ready.")]
    assert not notes.own_failed


def test_a_server_that_fails_in_one_run_keeps_its_others(scripted):
    """Its second start is the run at its own rate, the third the one at ours."""
    starts = iter([nullcontext(1.0), never("it ended with 9 before it was ready.")(), nullcontext(1.0)])
    flaky = serving.Served("vllm", "vllm serve", lambda: next(starts))
    notes = Notes([].append)
    found = serving.measure([scripted("octavo", 3.0), flaky], 1.0, 1.0, notes)
    assert [(run.server, run.rate_of) for run in found.runs] == [
        ("octavo", "vllm"),
        ("vllm", "octavo"),
        ("octavo", "octavo"),
    ]
    assert notes.left_out[0].sentence.startswith(
        "vllm serve is left out of the run at 0.70 requests a second: it ended with 9"
    )


def test_without_our_own_server_there_is_nothing_to_compare(scripted):
    notes = Notes([].append)
    dead = serving.Served("octavo", "octavo serve", never("it has no memory."))
    found = serving.measure([dead, scripted("vllm", 1.0)], 1.0, 1.0, notes)
    assert (found.saturations, found.runs) == ({}, [])
    assert notes.own_failed


HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def environment(tmp_path):
    made = Environment(tmp_path, "peer")
    made.folder.mkdir()
    return made


def test_a_server_is_waited_for_and_ended(environment):
    port = free_port()
    command = ServerCommand("Peer", [sys.executable, "-c", HEALTHY, str(port)], {}, "model", 30.0)
    with peer_server(command, environment, port) as target:
        assert (target.url, target.model) == (f"http://127.0.0.1:{port}", "model")
    # Nobody answers at its port any more, or this one would be taken for healthy.
    ended = ServerCommand("Again", [sys.executable, "-c", "raise SystemExit(3)"], {}, "model", 30.0)
    with (
        pytest.raises(PeerError, match="Again ended with 3 before it was ready"),
        peer_server(ended, environment, port),
    ):
        pass


def test_a_server_that_is_gone_is_a_sentence(environment):
    gone = ServerCommand("Peer", [str(environment.folder / "serve")], {}, "model", 30.0)
    with (
        pytest.raises(
            PeerError, match=f"cannot be started: No such file or directory; remove {environment.folder} and"
        ),
        peer_server(gone, environment, free_port()),
    ):
        pass


def test_a_server_that_never_gets_ready_is_ended_after_its_time(environment):
    waiting = ServerCommand("Peer", [sys.executable, "-c", "import time; time.sleep(600)"], {}, "model", 0.5)
    with (
        pytest.raises(PeerError, match=r"was not ready within 0\.5 s"),
        peer_server(waiting, environment, free_port()),
    ):
        pass
