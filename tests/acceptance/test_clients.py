"""The acceptance runs' clients see what is sent to them, and ask what they mean to ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from octavo_engine import contract
from octavo_engine.server.grammar_check import GrammarChecker
from octavo_engine.server.jobs import Job, Limits, Prepared
from octavo_engine.server.prepare import prepare
from octavo_engine.server.tokenizer import load_tokenizer
from tests.acceptance import rough_clients, schema_cases
from tests.acceptance.steady_streams import Interrupted, told
from tests.acceptance.wire import Broken, Wire, ask, request_bytes

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def choice(index, finish=None):
    return {"choices": [{"index": index, "text": "x", "finish_reason": finish}]}


def read(*pieces: bytes):
    """Return what a client makes of a server that sends these bytes and closes."""

    async def run():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            return await ask(server.sockets[0].getsockname()[1], "/")

    return asyncio.run(run())


END = chunk(event(b"[DONE]")) + chunk(b"")


def test_a_complete_stream_has_no_fault():
    answer = read(EVENTS, chunk(event(choice(0))), chunk(event(choice(1, "stop")) + event(choice(0, "length"))), END)
    assert answer.finish == {1: "stop", 0: "length"}
    assert answer.fault(2) == ""
    assert "choices [2]" in answer.fault(3)


def test_events_may_be_cut_anywhere():
    data = event(choice(0)) + event(choice(0, "stop")) + event(b"[DONE]")
    for cut in range(1, len(data)):
        assert read(EVENTS + chunk(data[:cut]), chunk(data[cut:]), chunk(b"")).fault(1) == ""


def test_an_error_is_an_end():
    error = {"error": {"message": "gone", "type": "server_error", "param": None, "code": "engine_error"}}
    answer = read(EVENTS, chunk(event(choice(0))), chunk(event(error)), chunk(b""))
    assert (answer.error, answer.fault(1)) == ("engine_error", "")
    body = json.dumps(error).encode()
    whole = read(b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (whole.status, whole.error, whole.fault(1)) == (500, "engine_error", "")


def test_silence_is_a_fault():
    assert "no finish reason" in read(EVENTS, chunk(event(choice(0))), END).fault(1)
    assert "[DONE]" in read(EVENTS, chunk(event(choice(0, "stop"))), chunk(b"")).fault(1)
    assert "status 502" in read(b"HTTP/1.1 502 X\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx").fault(1)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", EVENTS, EVENTS + chunk(event(choice(0)))[:-3]])
def test_a_connection_that_ends_too_early_is_broken(sent):
    with pytest.raises(Broken):
        read(sent)


def test_a_slow_reader_has_a_small_window():
    async def run():
        sent = 0

        async def flood(reader, writer):
            nonlocal sent
            with contextlib.suppress(OSError):
                while sent < 1 << 24:
                    writer.write(b"x" * 65536)
                    sent += 65536
                    await writer.drain()

        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        async with server:
            wire = await Wire.open(server.sockets[0].getsockname()[1], slow=True)
            for _ in range(50):
                await wire.read_some(100)
                await asyncio.sleep(0)
            wire.close()
        return sent

    assert asyncio.run(run()) < 1 << 24


def test_a_request_is_whole():
    head, _, body = request_bytes("/x", b"{}", "a: b").partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /x HTTP/1.1"
    assert {b"a: b", b"Content-Length: 2"} <= set(head.split(b"\r\n"))
    assert body == b"{}"
    assert request_bytes("/x").startswith(b"GET /x ")


def test_what_rough_clients_ask_for_is_valid():
    model = load_tokenizer(rough_clients.MODEL)
    limits = Limits(("scripted",), rough_clients.CONTEXT, model.vocab_size, 8192)
    draw, seen, grammars = random.Random(5), set(), GrammarChecker()
    for _ in range(300):
        path, body = rough_clients.body(draw)
        seen |= body.keys()
        route = "chat" if path == contract.PATH_CHAT_COMPLETIONS else "completions"
        result = prepare(Job(route, json.dumps(body).encode(), limits), model, grammars)
        assert isinstance(result, Prepared), (body, result)
    assert {"guided_regex", "response_format", "cache_salt", "stop", "n", "logprobs"} <= seen


# --- Streams that are compared ------------------------------------------------------------------------------------
def piece(text):
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, "logprobs": {"tokens": [*text]}}]}


def pieces(*texts):
    events = [piece(text) for text in texts]
    events[-1]["choices"][0]["finish_reason"] = "length"
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return [*events, {"choices": [], "usage": usage}, "[DONE]"]


def test_a_stream_is_what_it_says_however_it_is_cut():
    assert told(pieces("a", "b")).texts == told(pieces("ab")).texts == ("ab",)
    assert told(pieces("a", "b")).difference(told(pieces("a", "b"))) == ""
    assert told(pieces("a", "b")).difference(told(pieces("a", "c"))).startswith("texts: ")


def test_a_stream_without_its_end_is_interrupted():
    for broken in (pieces("a")[:-1], [pieces("a")[0], "[DONE]"], [*pieces("a")[:1], {"error": {"message": "x"}}]):
        with pytest.raises(Interrupted):
            told(broken)


# --- Cases ----------------------------------------------------------------------------------------------------------
def test_cases_are_counted_and_server_errors_told():
    lines = [{"operation": "POST /a", "status": status} for status in (200, 400, 400, 429, 503)]
    lines.append({"operation": "POST /b", "status": 500, "request": "curl", "answer": "internal"})
    cases = schema_cases.count("\n".join(map(json.dumps, lines)))
    assert cases.total == 6
    assert cases.statuses == {200: 1, 400: 2, 429: 1, 503: 1, 500: 1}
    assert cases.operations == {"POST /a": 5, "POST /b": 1}
    assert cases.faults == ["POST /b answered 500: internal to curl"]
    cases.add(schema_cases.count(""))
    assert cases.total == 6
