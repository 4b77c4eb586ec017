"""Server against server: each peer's rate is run by it and by us, ours by everybody."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest

from octavo_engine.bench.peers import serving
from octavo_engine.bench.peers.contender import ServerCommand
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
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


def test_a_peer_whose_server_does_not_start_is_left_out():
    @contextmanager
    def dead():
        raise PeerError("it ended with 1 before it was ready.")
        yield

    said = []
    found = serving.measure([serving.Served("vllm", "vllm serve", dead)], 1.0, 1.0, said.append)
    assert (found.saturations, found.runs) == ({}, [])
    assert said[-1] == "vllm serve is left out: it ended with 1 before it was ready."


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


def test_a_server_that_never_gets_ready_is_ended_after_its_time(environment):
    waiting = ServerCommand("Peer", [sys.executable, "-c", "import time; time.sleep(600)"], {}, "model", 0.5)
    with (
        pytest.raises(PeerError, match=r"was not ready within 0\.5 s"),
        peer_server(waiting, environment, free_port()),
    ):
        pass
