"""Clients that vanish, and readers that do not read: what they began ends within about a second (B22, B30)."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine import contract
from tests.server.double import Script, double
from tests.server.launch import Server, read_stream, serving, text_of, wait_until

COMPLETIONS = contract.PATH_COMPLETIONS
CHAT = contract.PATH_CHAT_COMPLETIONS
GONE_SECONDS = 3.0
"""About a second is promised; the rest is for a machine that does other things too."""


def connect(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request by hand and return the connection, nothing read yet."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.socket()
    # A small window: what the client does not read must wait in the server, not in the kernel.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    connection.sendall(head.encode() + data)
    return connection


def long_body(path: str, **fields: Any) -> dict[str, Any]:
    what = {"messages": [{"role": "user", "content": "p"}]} if path == CHAT else {"prompt": "p"}
    return {**what, "max_tokens": 5000, "ignore_eos": True, **fields}


def running(server: Server) -> float:
    return server.metrics("octavo_requests_running")["octavo_requests_running"]


def outcomes(server: Server) -> dict[str, float]:
    found = server.metrics("octavo_requests_total")
    return {key.split('"')[1]: value for key, value in found.items() if key.startswith("octavo_")}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_b22_a_client_that_leaves_ends_its_request(quiet: Server, path: str, streamed: bool, n: int) -> None:
    before = outcomes(quiet)["abort"]
    connection = connect(quiet.port, path, long_body(path, stream=streamed, n=n))
    wait_until(lambda: running(quiet) == n, 10, "running")
    connection.close()
    quiet.wait_idle(GONE_SECONDS)
    assert outcomes(quiet)["abort"] == before + n


def test_b22_a_client_that_leaves_in_the_middle_of_a_chunk(quiet: Server) -> None:
    connection = connect(quiet.port, COMPLETIONS, long_body(COMPLETIONS, stream=True))
    assert connection.recv(200)
    connection.close()
    quiet.wait_idle(GONE_SECONDS)


def test_b22_half_a_close_is_a_leave(quiet: Server) -> None:
    connection = connect(quiet.port, COMPLETIONS, long_body(COMPLETIONS, stream=True))
    wait_until(lambda: running(quiet) == 1, 10, "running")
    connection.shutdown(socket.SHUT_WR)
    quiet.wait_idle(GONE_SECONDS)
    connection.close()


def test_b22_a_client_that_leaves_while_its_body_is_read(quiet: Server) -> None:
    connection = socket.create_connection(("127.0.0.1", quiet.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    connection.close()
    quiet.wait_idle(GONE_SECONDS)


def test_b22_two_hundred_clients_vanish_at_once(quiet: Server) -> None:
    connections = [
        connect(quiet.port, COMPLETIONS, long_body(COMPLETIONS, stream=bool(index % 2))) for index in range(200)
    ]
    wait_until(lambda: running(quiet) > 0, 20, "running")
    for connection in connections:
        connection.close()
    quiet.wait_idle(10)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two slots and a queue of eight."""
    flags = ("--max-num-seqs", "2", "--max-num-queued-reqs", "8", "--drain-propagation", "0")
    with serving(tmp_path_factory.mktemp("narrow"), "scripted://?step=5ms&blocks=256&eos=0", *flags) as server:
        yield server


def test_b22_a_client_that_leaves_while_waiting(narrow: Server) -> None:
    busy = [connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS, stream=True)) for _ in range(2)]
    wait_until(lambda: running(narrow) == 2, 10, "running")
    waiting = connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS))
    depth = "octavo_queue_depth"
    wait_until(lambda: narrow.metrics(depth)[depth] == 1, 10, "waiting")
    waiting.close()
    wait_until(lambda: narrow.metrics(depth)[depth] == 0, GONE_SECONDS, "gone from the queue")
    for connection in busy:
        connection.close()
    narrow.wait_idle()


def test_b23_a_full_queue_answers_429_before_any_header(narrow: Server) -> None:
    """Two run, eight wait, the others are refused; n counts n."""
    before = outcomes(narrow)
    connections = [connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS, stream=True)) for _ in range(2)]
    wait_until(lambda: running(narrow) == 2, 10, "two run")
    connections += [connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS, stream=True)) for _ in range(8)]
    wait_until(lambda: narrow.metrics("octavo_queue_depth")["octavo_queue_depth"] == 8, 10, "a full queue")
    for body in (long_body(COMPLETIONS, stream=True), long_body(COMPLETIONS, n=8)):
        answer = narrow.post(COMPLETIONS, body)
        assert answer.status_code == 429
        assert answer.headers["retry-after"]
        assert answer.headers["x-octavo-not-started"] == "1"
        assert answer.json()["error"]["type"] == "rate_limit_error"
    assert narrow.status("/health") == 200
    assert narrow.status("/ready") == 200, "saturated is ready"
    for connection in connections:
        connection.close()
    narrow.wait_idle()
    assert outcomes(narrow)["rejected"] > before["rejected"]
    assert narrow.post(COMPLETIONS, {"prompt": "ok", "max_tokens": 2}).status_code == 200


def test_b22_a_slow_reader_holds_up_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One client never reads while its answer is made; others keep their pace, and memory stays bounded."""
    flags = ("--drain-propagation", "0")
    with serving(tmp_path_factory.mktemp("slow"), "scripted://?step=500us&blocks=1024&eos=0", *flags) as server:
        api = psutil.Process(server.process.pid)
        slow = [
            connect(server.port, COMPLETIONS, long_body(COMPLETIONS, stream=True, max_tokens=4000)) for _ in range(3)
        ]
        before = api.memory_info().rss
        body = {"prompt": "p", "max_tokens": 100, "seed": 3}
        texts = {text_of(read_stream(server, COMPLETIONS, body)) for _ in range(5)}
        assert len(texts) == 1
        wait_until(lambda: running(server) == 0, 60, "the slow readers' tokens are made")
        assert api.memory_info().rss - before < 64 * 2**20
        for connection in slow:
            connection.close()
        server.wait_idle()


class NoOp:
    """A pure ASGI middleware somebody may add."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


def test_b22_behind_one_more_middleware() -> None:
    script = Script([97] * 10, hold=threading.Event())
    with double(script, wrap=NoOp) as server:
        connection = connect(int(server.url.rsplit(":", 1)[1]), COMPLETIONS, long_body(COMPLETIONS))
        wait_until(lambda: script.submits, 5, "submitted")
        connection.close()
        wait_until(lambda: script.aborts, GONE_SECONDS, "aborted")
    assert [abort.choice for abort in script.aborts] == [-1]


def test_b30_aborts_in_every_state_leave_the_others_as_they_were(narrow: Server) -> None:
    """Clients leave at every moment, many at once; a survivor's text does not change and nothing stays behind."""
    body = {"prompt": "survivor", "seed": 9, "max_tokens": 60}
    expected = text_of(read_stream(narrow, COMPLETIONS, body))
    for round_ in range(3):
        connections = [
            connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS, stream=bool(index % 2), n=1 + index % 2))
            for index in range(4)
        ]
        survivors: list[str] = []
        thread = threading.Thread(
            target=lambda into=survivors: into.append(text_of(read_stream(narrow, COMPLETIONS, body)))
        )
        thread.start()
        for index, connection in enumerate(connections):
            time.sleep(0.01 * (round_ + index))
            connection.close()
        thread.join(60)
        assert survivors == [expected]
    narrow.wait_idle()


def test_b31_admitted_is_what_ended_and_what_is_in_flight(narrow: Server) -> None:
    """Counted at every scrape while requests of all kinds come and go."""

    def totals() -> tuple[float, float]:
        names = ("octavo_requests_total", "octavo_time_to_first_token_seconds", "octavo_request_seconds")
        found = narrow.metrics(*names)
        ended = sum(
            value
            for key, value in found.items()
            if key.startswith("octavo_requests_total") and 'outcome="rejected"' not in key
        )
        return ended, found["octavo_request_seconds_count"]

    began, _ = totals()
    for index in range(12):
        if index % 3 == 0:
            connection = connect(narrow.port, COMPLETIONS, long_body(COMPLETIONS, stream=True))
            assert connection.recv(64)
            connection.close()
        else:
            fields = {"stop": ["e", "a", "o", "t"]} if index % 3 == 1 else {}
            narrow.post(COMPLETIONS, {"prompt": "p", "max_tokens": 40, **fields})
        ended, timed = totals()
        assert ended == timed, "one request, one bucket"
    narrow.wait_idle()
    ended, _ = totals()
    assert ended - began == 12


def test_b23_a_thousand_requests_into_two_slots_are_answered_or_refused(narrow: Server) -> None:
    """Nobody hangs, nobody sees a 5xx, and the refused never began."""

    async def ask(statuses: list[int]) -> None:
        body = b'{"prompt":"p","max_tokens":1}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", narrow.port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
        writer.close()
        statuses.append(int(answer[9:12]))
        assert answer[9:12] == b"200" or b"x-octavo-not-started: 1" in answer

    async def run() -> list[int]:
        statuses: list[int] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(1000):
                group.create_task(ask(statuses))
        return statuses

    statuses = asyncio.run(run())
    assert len(statuses) == 1000
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 8
    narrow.wait_idle()
