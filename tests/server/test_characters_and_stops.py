"""Text over token boundaries, on every route: characters (B01), stop strings (B02), reasons (B04), usage (B14)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.double import EOS, FIRST_PIECE, Double, Script, double
from tests.server.launch import events, finish_reasons, text_of

ROUTES = ("/v1/completions", "/v1/chat/completions")


def request_body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "p"} if path == ROUTES[0] else {"messages": [{"role": "user", "content": "p"}]}
    return {"model": "double", "max_tokens": 100, **prompt, **fields}


def whole(server: Double, path: str, **fields: Any) -> dict[str, Any]:
    answer = server.post(path, request_body(path, **fields))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def whole_text(answer: dict[str, Any], choice: int = 0) -> str:
    item = answer["choices"][choice]
    return str(item["text"] if "text" in item else item["message"]["content"])


def stream(server: Double, path: str, **fields: Any) -> list[Any]:
    body = request_body(path, stream=True, **fields)
    with server.client() as client, client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        return list(events(response))


def pieces_script(pieces: list[bytes], per_step: int = 1) -> tuple[Script, list[bytes]]:
    return Script([*range(FIRST_PIECE, FIRST_PIECE + len(pieces))], per_step), pieces


FAMILY = "👨‍👩‍👧‍👦".encode()
CHARACTERS = {
    "emoji in two halves": ([b"A", b"\xf0\x9f", b"\xa6\x99", b"!"], "A🦙!"),
    "the last byte apart": ([b"A \xe4\xb8\x96\xe7", b"\x95\x8c", b"b"], "A 世界b"),
    "cut within a character": ([b"\xf0", b"\x9f", b"\xa6"], "\ufffd"),
    "a byte that is no character": ([b"\xff", *[b"x"] * 50], "\ufffd" + "x" * 50),
    "a family over seven tokens": ([FAMILY[i * 4 : i * 4 + 4] for i in range(7)], "👨‍👩‍👧‍👦"),
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("case", CHARACTERS)
def test_characters_split_over_tokens_arrive_whole_and_once(path: str, case: str) -> None:
    pieces, expected = CHARACTERS[case]
    script, table = pieces_script(pieces)
    with double(script, table) as server:
        streamed = stream(server, path, n=2)
        answer = whole(server, path, n=2)
    for choice in (0, 1):
        assert text_of(streamed, choice) == whole_text(answer, choice) == expected
        assert finish_reasons(streamed, choice) == ["length"]


def test_a_broken_byte_does_not_hold_up_the_stream() -> None:
    script, table = pieces_script([b"\xff", *[b"x"] * 50])
    with double(script, table) as server:
        deltas = [event["choices"][0]["text"] for event in stream(server, ROUTES[0]) if event != "[DONE]"]
    assert len(deltas) >= 50


STOPS = {
    "over three tokens": (["Al", "pha ", "OB", "SER", "VE: x"], ["OBSERVE:"], "Alpha ", "stop"),
    "a near miss": (["Al", "pha ", "OB", "SER", "B x"], ["OBSERVE:"], "Alpha OBSERB x", "length"),
    "one the head of another": (["Al", "pha ", "OB", "SERVE: x"], ["OB", "OBSERVE:"], "Alpha ", "stop"),
    "begins and ends within tokens": (["a b", "c d", "e f"], ["bc d"], "a ", "stop"),
    "only in the prompt": (["a", "b"], ["p"], "ab", "length"),
    "completed by the last token": (["a", "E", "ND"], ["END"], "a", "stop"),
    "held at the end": (["a", "EN"], ["END"], "aEN", "length"),
    "over many characters": (["日", "本", "語", "!"], ["本語"], "日", "stop"),
    "overlapping itself": (["aa", "ab", "c"], ["aab"], "a", "stop"),
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("case", STOPS)
@pytest.mark.parametrize("per_step", [1, 3])
def test_stop_strings_end_the_text_exactly(path: str, case: str, per_step: int) -> None:
    pieces, stops, expected, reason = STOPS[case]
    script, table = pieces_script([piece.encode() for piece in pieces], per_step)
    with double(script, table) as server:
        streamed = stream(server, path, stop=stops, stream_options={"include_usage": True})
        answer = whole(server, path, stop=stops)
    assert text_of(streamed) == whole_text(answer) == expected
    assert finish_reasons(streamed) == [answer["choices"][0]["finish_reason"]] == [reason]
    assert streamed[-2]["usage"] == answer["usage"], "tokens are counted alike, those of the stop string included"


def test_a_stop_string_within_a_character_s_bytes() -> None:
    data = "ab界END".encode()
    script, table = pieces_script([data[:3], data[3:6], data[6:]])
    with double(script, table) as server:
        assert whole_text(whole(server, ROUTES[0], stop="END")) == "ab界"


def test_the_stop_string_may_be_left_in() -> None:
    script, table = pieces_script([b"Al", b"pha ", b"E", b"ND", b"x"])
    with double(script, table) as server:
        assert whole_text(whole(server, ROUTES[0], stop="END", include_stop_str_in_output=True)) == "Alpha END"


def test_a_stop_string_tells_the_engine_to_end_that_choice_only() -> None:
    script, table = pieces_script([b"a", b"END", *[b"x"] * 20])
    with double(script, table) as server:
        whole(server, ROUTES[0], stop="END", n=2)
    assert [(abort.choice) for abort in script.aborts] == [0, 1]
    assert server.state.counters.outcomes["stop"] == 2
    assert server.state.counters.outcomes["abort"] == 0


def test_a_stop_token_id_is_no_text_unless_asked_for() -> None:
    pieces = [b"a", b"b", b"c"]
    for include, expected in ((False, "a"), (True, "ab")):
        script, table = pieces_script(pieces)
        with double(script, table) as server:
            answer = whole(server, ROUTES[0], stop_token_ids=[FIRST_PIECE + 1], include_stop_str_in_output=include)
        assert whole_text(answer) == expected
        assert answer["choices"][0]["stop_reason"] == FIRST_PIECE + 1
        assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("n", [1, 3])
def test_the_token_limit_is_reported_as_length(path: str, n: int) -> None:
    script, table = pieces_script([b"t"] * 10)
    with double(script, table) as server:
        streamed = stream(server, path, max_tokens=1, n=n)
        answer = whole(server, path, max_tokens=1, n=n)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * n
    for choice in range(n):
        assert finish_reasons(streamed, choice) == ["length"], "exactly one terminal chunk per choice"
    assert streamed[-1] == "[DONE]"


def test_eos_on_the_last_permitted_token_is_a_stop() -> None:
    with double(Script([ord("a"), EOS])) as server:
        answer = whole(server, ROUTES[0], max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert whole_text(answer) == "a"


def test_the_context_s_end_before_max_tokens_is_length() -> None:
    with double(Script([ord("a")] * 300), max_model_len=32) as server:
        answer = whole(server, ROUTES[0], max_tokens=1000)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 32


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("n", [1, 3])
def test_usage_in_streams_is_the_usage_of_the_whole_answer(path: str, n: int) -> None:
    script, table = pieces_script([b"a", b"b", b"END", b"c"])
    script.cached_tokens = 16
    with double(script, table) as server:
        asked = stream(server, path, n=n, stop="END", stream_options={"include_usage": True})
        answer = whole(server, path, n=n, stop="END")
    assert asked[-1] == "[DONE]"
    *chunks, last = asked[:-1]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    assert answer["usage"]["completion_tokens"] == 3 * n
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}, "a prompt counts once, whatever n"


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
def test_no_usage_unless_asked_for(options: dict[str, Any]) -> None:
    with double(Script([97])) as server:
        chunks = stream(server, ROUTES[0], **options)[:-1]
    assert chunks
    assert not any("usage" in chunk for chunk in chunks)


def test_stream_options_without_stream_are_refused() -> None:
    with double(Script([97])) as server:
        answer = server.post(ROUTES[0], request_body(ROUTES[0], stream_options={"include_usage": True}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_in_the_stream_is_a_frame_without_done(path: str) -> None:
    script = Script([97] * 10, fail_after=3)
    with double(script) as server:
        streamed = stream(server, path)
        answer = server.post(path, request_body(path))
    assert streamed[-1]["error"]["type"] == "server_error"
    assert "not finite" in streamed[-1]["error"]["message"]
    assert "[DONE]" not in streamed
    assert text_of(streamed[:-1]) == "aaa"
    assert answer.status_code == 500
    assert json.loads(answer.content)["error"]["code"] == "engine_error"


def test_streams_ask_proxies_not_to_buffer() -> None:
    with double(Script([97])) as server:
        body = request_body(ROUTES[0], stream=True)
        with server.client() as client, client.stream("POST", ROUTES[0], json=body) as response:
            response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(("refuse", "status"), [("queue_full", 429), ("never_fits", 400)])
def test_the_engine_s_own_refusal_comes_before_any_header(refuse: str, status: int) -> None:
    with double(Script([97], refuse=refuse)) as server:
        answer = server.post(ROUTES[0], request_body(ROUTES[0], stream=True))
    assert answer.status_code == status
    assert server.state.counters.outcomes["rejected"] >= 1
    if status == 429:
        assert answer.headers["retry-after"]
        assert answer.headers["x-octavo-not-started"] == "1"
