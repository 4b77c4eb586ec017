"""The load generator's HTTP: any split of the bytes gives the same answer, no broken answer passes as a whole one."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.bench.http_stream import StreamError, connect, parse_url, request_bytes

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
EVENTS = (
    b'data: {"id":"a","choices":[{"index":0,"text":"he","finish_reason":null}],"usage":null}\n\n'
    b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"llo"},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7,"total_tokens":10}}\n\n'
    b"data: [DONE]\n\n"
)


def chunked(*pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def exchange(pieces, requests=1):
    """Let a server answer with these pieces, each its own write, and close; return the answers."""

    served = asyncio.Event()

    async def serve(reader, writer):
        for _ in range(requests):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()
        served.set()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        connection = await connect(address)
        try:
            return [await connection.request(request_bytes(address, "GET", "/x")) for _ in range(requests)]
        finally:
            connection.close()
            await served.wait()
            server.close()
            await server.wait_closed()

    return asyncio.run(run())


def whole(cut):
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(EVENTS[:cut], EVENTS[cut:])


@settings(deadline=None)
@given(st.integers(1, len(EVENTS) - 1), st.lists(st.integers(0, len(EVENTS) + 150), max_size=4))
def test_any_split_gives_the_same_answer(chunk_end, cuts):
    data = whole(chunk_end)
    edges = [0, *sorted(cuts), len(data)]
    (answer,) = exchange([data[a:b] for a, b in itertools.pairwise(edges)])
    assert answer.status == 200
    assert answer.output_tokens == 7
    assert len(answer.times) == 2
    assert answer.sent <= answer.times[0] <= answer.times[1] <= answer.ended


def test_a_connection_serves_one_request_after_the_other():
    first, second = exchange([whole(10)], requests=2)
    assert first.output_tokens == second.output_tokens == 7


def test_without_usage_the_messages_with_text_are_counted():
    events = b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: {"choices":[{"text":"b"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    (answer,) = exchange([HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(events)])
    assert answer.output_tokens == 2


def test_fields_beside_the_data_are_passed_over():
    events = (
        b'id: 1\nevent: message\ndata: {"choices":\ndata: [{"text":"a"}]}\n\n'
        b'data:{"choices":[{"text":"b"}]}\nid: 2\n\nretry: 5\n\nevent: done\ndata: [DONE]\n\n'
    )
    (answer,) = exchange([HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(events)])
    assert (answer.output_tokens, len(answer.times), answer.counted) == (2, 2, False)


def test_an_answer_that_ends_with_its_connection_is_whole_if_it_says_so():
    (answer,) = exchange([HEAD + b"connection: close\r\n\r\n" + EVENTS])
    assert answer.output_tokens == 7


def test_a_refusal_keeps_its_body():
    (answer,) = exchange([b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy"])
    assert (answer.status, answer.body) == (429, b"busy")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(EVENTS)[:-40], "broke off"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(EVENTS[:80]), "before"),
        (HEAD + b"\r\n" + EVENTS[:80], "before"),
        (
            HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(b'data: {"error":{"message":"out of luck"}}\n\n'),
            "luck",
        ),
        (
            HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(b'event: error\ndata: {"message":"gone"}\n\n'),
            "ended the stream with .*gone",
        ),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(b"data: {nonsense\n\n"), "cannot be read.*malformed"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n", "cannot be read"),
        (HEAD + b"content-length: many\r\n\r\n", "cannot be read"),
        (b"220 mail.example ESMTP\r\n\r\n", "is no HTTP/1.1, it begins with '220 mail"),
        (b"HTTP/1.1 fine\r\n\r\n", "is no HTTP/1.1"),
    ],
)
def test_what_breaks_is_a_failure(data, reason):
    with pytest.raises(StreamError, match=reason):
        exchange([data])


@pytest.mark.parametrize("url", ["https://here", "here:8000", "ftp://x", ""])
def test_only_plain_http_is_measured(url):
    with pytest.raises(ValueError, match="plain http URL"):
        parse_url(url)
