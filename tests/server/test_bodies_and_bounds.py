"""What a request may ask for and hold at the most: sequences, and bytes of bodies that may never arrive."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

import pytest

from octavo_engine import contract
from octavo_engine.server import exchange
from tests.server.double import Script, double
from tests.server.launch import wait_until
from tests.server.test_refusals import check_error

COMPLETIONS = contract.PATH_COMPLETIONS


def test_more_sequences_than_may_ever_wait_are_a_client_s_error() -> None:
    with double(Script([97]), max_queue_requests=16) as server:
        many = check_error(server.post(COMPLETIONS, {"prompt": ["z"] * 18}))
        assert many["param"] == "prompt"
        assert "18 sequences" in many["message"]
        assert "16 may wait" in many["message"]
        assert check_error(server.post(COMPLETIONS, {"prompt": "z", "n": 18}))["param"] == "n"
        assert server.post(COMPLETIONS, {"prompt": ["z"] * 16}).status_code == 200


def half_sent(port: int, body: bytes, declared: int = contract.MAX_BODY_BYTES) -> socket.socket:
    """Send the head of a request and `body`, less than it declares."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(head.encode() + body)
    return connection


def test_bodies_that_were_only_declared_hold_nobody_up() -> None:
    with double(Script([97])) as server, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(half_sent(int(server.url.rsplit(":", 1)[1]), b"{"))
        wait_until(lambda: server.state.lifecycle.open_exchanges == 40, 10, "forty bodies have begun")
        began = time.monotonic()
        large = server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 1, "x_unknown": "x" * 1024 * 1024})
        assert large.status_code == 200
        assert time.monotonic() - began < 5


def test_a_body_of_which_nothing_comes_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PIECE_SECONDS", 0.3)
    with double(Script([97])) as server, half_sent(int(server.url.rsplit(":", 1)[1]), b"{") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_many_large_bodies_at_the_same_time_are_all_read() -> None:
    """Twice the budget, each half sent before any goes on: none waits for the others for ever."""
    size = 24 * 1024 * 1024
    statuses: list[bytes] = []
    body = b'{"prompt":"p","max_tokens":1,"x_unknown":"' + b"x" * size + b'"}'

    def finish(connection: socket.socket) -> None:
        connection.sendall(body[len(body) // 2 :])
        statuses.append(connection.recv(4096)[:12])

    with double(Script([97])) as server, ExitStack() as stack:
        port = int(server.url.rsplit(":", 1)[1])
        halves = [stack.enter_context(half_sent(port, b"", len(body))) for _ in range(6)]
        threads = [threading.Thread(target=lambda c=c: (c.sendall(body[: len(body) // 2]), finish(c))) for c in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert server.state.budget.free == exchange.BUDGET_BYTES
    assert statuses == [b"HTTP/1.1 200"] * 6
