"""`octavo chat` against what is no inference server: one sentence each time, and exit code 1."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from octavo_engine.commands.chat import chat

MODELS = json.dumps({"data": [{"id": "m"}]}).encode()


@contextmanager
def answering(models: bytes, completions: bytes) -> Iterator[str]:
    """Yield the URL of a server that answers everything with 200 and these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(completions)

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def event(**content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@pytest.mark.parametrize("models", [b"<html>", b"[]", b"{}", b'{"data": []}', b'{"data": [1]}', b'{"data": null}'])
def test_what_names_no_model_is_told(models: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(models, b"") as url:
        assert chat(url, None, None, "", "hello") == 1
    assert capsys.readouterr().err == f"octavo chat: What answers at {url}/v1/ names no model as OpenAI's API does.\n"


@pytest.mark.parametrize(
    ("completions", "sentence"),
    [
        (b"data: {\n\n", "not in OpenAI's format"),
        (b"data: \xff\n\n", "not in OpenAI's format"),
        (b"data: [1]\n\n", "not in OpenAI's format"),
        (event(choices=None), "not in OpenAI's format"),
        (event(choices=[1]), "not in OpenAI's format"),
        (event(choices=[{}]), "not in OpenAI's format"),
        (event(choices=[{"delta": None}]), "not in OpenAI's format"),
        (event(error={"message": "too much"}), "too much"),
        (event(error="too much"), "too much"),
        (event(choices=[]), "The answer broke off"),
        (b"<html>", "The answer broke off"),
    ],
)
def test_what_is_no_answer_is_told(completions: bytes, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(MODELS, completions) as url:
        assert chat(url, None, None, "", "hello") == 1
    said = capsys.readouterr().err
    assert said.startswith("octavo chat: ")
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:port"])
def test_what_is_no_url_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(url, None, None, "", "hello") == 1
    said = capsys.readouterr().err
    assert said.startswith("octavo chat: ")
    assert said.count("\n") == 1


def test_an_answer_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [event(choices=[{"delta": {"content": text}}]) for text in ("bon", None, "jour")]
    with answering(MODELS, b"".join(pieces) + b"data: [DONE]\n\n") as url:
        assert chat(url, None, None, "", "hello") == 0
    assert capsys.readouterr().out == "bonjour\n"
