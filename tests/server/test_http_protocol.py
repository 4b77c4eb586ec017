"""What a connection may hold besides a body, and requests that only other HTTP stacks send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from octavo_engine import contract
from octavo_engine.server.http_protocol import MAX_HEAD_BYTES
from tests.server.double import Double, Script, double

COMPLETIONS = contract.PATH_COMPLETIONS
PIECE = 16 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with double(Script([97])) as running:
        yield running


def connect(server: Double) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=20)


def post(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return one answer's status and body, which has a Content-Length."""
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        length = 0
        while line := file.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, file.read(length)


CHUNKED = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
ENDLESS = {
    "a request line": (b"GET /", b"a" * PIECE),
    "a header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * PIECE),
    "headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-Many: a\r\n" * (PIECE // 11)),
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"X-Many: a\r\n" * (PIECE // 11)),
    "a trailer": (CHUNKED + b"1\r\n{\r\n0\r\nX-Long: ", b"a" * PIECE),
    "a chunk's extension": (CHUNKED + b"1;", b"a" * PIECE),
    "empty lines": (b"", b"\r\n" * (PIECE // 2)),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_cut_off(server: Double, what: str) -> None:
    begin, piece = ENDLESS[what]
    # A server that closes meanwhile resets the connection, with or without its answer.
    with connect(server) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(begin)
        # One read brings up to 256 KiB, and what it ends with counts from the next one on.
        for _ in range(8 * MAX_HEAD_BYTES // PIECE):
            connection.sendall(piece)
        while connection.recv(PIECE):
            pass
    with connect(server) as connection:
        connection.sendall(post(b'{"prompt":"a","max_tokens":1}'))
        assert answer(connection)[0] == 200


def test_headers_up_to_the_bound_are_read(server: Double) -> None:
    with connect(server) as connection:
        connection.sendall(post(b'{"prompt":"a","max_tokens":1}', "X-Long: " + "a" * (MAX_HEAD_BYTES - 1024)))
        assert answer(connection)[0] == 200


def test_a_large_head_is_told_what_is_wrong(server: Double) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * MAX_HEAD_BYTES)
        status, body = answer(connection)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["message"]) == (
        431,
        "headers_too_large",
        "The headers are larger than 64 KiB.",
    )


def test_a_client_of_http_1_0_gets_no_chunks(server: Double) -> None:
    asked = post(b'{"prompt":"a","max_tokens":1,"stream":true}').replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with connect(server) as connection, connection.makefile("rb") as file:
        connection.sendall(asked)
        head, _, body = file.read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]) == "a"


def test_clients_that_offer_http_2_are_answered_in_http_1(server: Double) -> None:
    """As Java's HttpClient does with every request of a connection."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(post(b'{"prompt":"a","max_tokens":1}', *offer))
            status, body = answer(connection)
            assert status == 200
            assert json.loads(body)["object"] == "text_completion"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n continued\r\n\r\n",
        b"GET /h\xc3\xa9alth HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
)
def test_what_servers_before_this_one_may_read_otherwise_is_refused(server: Double, head: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(head)
        status, body = answer(connection)
    error = json.loads(body)["error"]
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_http")
