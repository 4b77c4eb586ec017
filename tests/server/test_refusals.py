"""What is refused, and how, beside live streams that must not notice: B05 B07 B08 B09 B23 (sizes)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from tests.server.launch import Server, read_stream, text_of

COMPLETIONS = contract.PATH_COMPLETIONS
CHAT = contract.PATH_CHAT_COMPLETIONS
STREAMS = 4


def check_error(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Assert OpenAI's error object, parsed strictly, without a class name in it; return it."""
    assert answer.status_code == status, answer.text

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in an error body")

    body = json.loads(answer.content, parse_constant=refuse)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert message
    for word in ("Traceback", "Error(", "Exception", "octavo_engine", "msgspec", "'dict'", "NoneType"):
        assert word not in message
    return dict(body["error"])


def live_body(seed: int) -> dict[str, Any]:
    return {"prompt": f"live stream {seed}", "seed": seed, "temperature": 0.8, "max_tokens": 150}


@pytest.fixture(scope="module")
def quiet_texts(server: Server) -> list[str]:
    """What the live streams say when nobody else is there."""
    return [text_of(read_stream(server, COMPLETIONS, live_body(seed))) for seed in range(STREAMS)]


@contextmanager
def live_streams(server: Server, quiet_texts: list[str]) -> Iterator[None]:
    """Keep streams running, one after another; each must say what it says in quiet."""
    over = threading.Event()
    wrong: list[str] = []
    finished = [0] * STREAMS

    def run(seed: int) -> None:
        while True:
            text = text_of(read_stream(server, COMPLETIONS, live_body(seed)))
            finished[seed] += 1
            if text != quiet_texts[seed]:
                wrong.append(f"stream {seed}: {text!r}")
            if over.is_set():
                return

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert all(finished)


EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": ""}),
    "a list of an empty text": (COMPLETIONS, {"prompt": [""]}),
    "no prompts": (COMPLETIONS, {"prompt": []}),
    "a list of no ids": (COMPLETIONS, {"prompt": [[]]}),
    "one of two": (COMPLETIONS, {"prompt": ["ok", ""]}),
    "absent": (COMPLETIONS, {}),
    "null": (COMPLETIONS, {"prompt": None}),
    "no tokens": (COMPLETIONS, {"prompt": "Yes", "max_tokens": 0}),
    "no messages": (CHAT, {"messages": []}),
    "messages absent": (CHAT, {}),
}


def test_b05_requests_for_no_work_are_refused(quiet: Server, quiet_texts: list[str]) -> None:
    with live_streams(quiet, quiet_texts):
        for path, body in EMPTY.values():
            check_error(quiet.post(path, {**body, "stream": True}))
            check_error(quiet.post(path, body))


NUMBERS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
NOT_FINITE = ("NaN", "Infinity", "-Infinity", "1e400", '"nan"', '"1"', "true", "[]", "1" + "0" * 400)


def test_b07_what_is_no_finite_number_is_refused(quiet: Server, quiet_texts: list[str]) -> None:
    with live_streams(quiet, quiet_texts):
        for name in NUMBERS:
            for value in NOT_FINITE:
                body = f'{{"prompt": "p", "max_tokens": 2, "{name}": {value}}}'
                check_error(quiet.post_bytes(COMPLETIONS, body.encode()))
        for value in NOT_FINITE:
            body = f'{{"prompt": "p", "max_tokens": 2, "logit_bias": {{"5": {value}}}}}'
            check_error(quiet.post_bytes(COMPLETIONS, body.encode()))
        for name, value in (
            ("repetition_penalty", 0), ("repetition_penalty", 1e-9), ("top_p", 0), ("top_p", 1.1), ("min_p", -0.1),
            ("temperature", -1), ("temperature", 2.5), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ):  # fmt: skip
            assert check_error(quiet.post(COMPLETIONS, {"prompt": "p", name: value}))["param"] == name


def test_b07_a_tiny_temperature_is_greedy(quiet: Server) -> None:
    texts = {
        quiet.post(COMPLETIONS, {"prompt": "p", "max_tokens": 20, "temperature": temperature}).json()["choices"][0][
            "text"
        ]
        for temperature in (0, 1e-9)
    }
    assert len(texts) == 1
    assert texts != {""}


BAD_INTEGERS: list[tuple[str, Any]] = [
    ("seed", 2**63), ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.0), ("seed", "7"), ("seed", True),
    ("top_k", 0.01), ("top_k", -2), ("top_k", 10**19), ("max_tokens", 2**40), ("max_tokens", -1),
    ("max_tokens", 1.5), ("max_tokens", "5"), ("n", 0), ("n", -1), ("n", 10_000), ("n", 1.0), ("n", True),
    ("min_tokens", -1), ("priority", 2**40), ("stop_token_ids", [1.5]),
    ("stop_token_ids", [-1]), ("stop_token_ids", [10**6]), ("allowed_token_ids", []), ("allowed_token_ids", [259]),
    ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"259": 1}), ("logit_bias", {"5": 101}),
    ("logit_bias", []), ("prompt", [1, 2.0]), ("prompt", [-1]), ("prompt", [10**9]), ("prompt", [2**70]),
    ("prompt", [True]), ("prompt", {"a": 1}), ("prompt", 7), ("prompt", [["a"]]), ("prompt", ["a", [1]]),
]  # fmt: skip


def test_b08_integers_out_of_range_or_of_another_type_are_refused(quiet: Server, quiet_texts: list[str]) -> None:
    mixed = ("prompt", ["a", [1]])
    with live_streams(quiet, quiet_texts):
        for name, value in BAD_INTEGERS:
            answer = quiet.post(COMPLETIONS, {"prompt": "p", name: value})
            if (name, value) == mixed:
                assert answer.status_code == 200, "texts and id lists may be mixed"
                continue
            assert str(check_error(answer)["param"]).startswith(name), (name, value)
        answer = quiet.post(COMPLETIONS, {"prompt": "p", "min_tokens": 5, "max_tokens": 4})
        assert check_error(answer)["param"] == "min_tokens"
        for value in (-1, 21, 10**6):
            body = {"messages": [{"role": "user", "content": "p"}], "logprobs": True, "top_logprobs": value}
            check_error(quiet.post(CHAT, body))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 0),
        ("seed", -1),
        ("seed", 2**63 - 1),
        ("seed", -(2**63)),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 10**18),
    ],
)
def test_b08_integers_at_the_edges_are_taken(quiet: Server, name: str, value: int) -> None:
    assert quiet.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2, name: value}).status_code == 200


BODIES: dict[str, bytes] = {
    "a list": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "a number": b"1",
    "half an object": b"{",
    "nothing": b"",
    "blanks": b" \n",
    "ten megabytes of nothing": b" " * 10_000_000,
    "megabytes of lists": b"[" + b"[]," * 500_000 + b"[]]",
    "five thousand levels": b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a hundred levels": b'{"x":' + b"[" * 100 + b"]" * 100 + b"}",
    "doubled keys": b'{"prompt":"a","prompt":"b"}',
    "UTF-16": '{"prompt":"a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt":"a"}',
    "bytes that are no text": b'{"prompt":"\xff\xfe"}',
    "something after it": b'{"prompt":"a"} x',
    "half a character in the prompt": b'{"prompt":"hi \\ud800"}',
    "half a character in stop": b'{"prompt":"hi","stop":"\\ud800"}',
    "half a character in model": b'{"prompt":"hi","model":"\\udfff"}',
    "half a character in a key": b'{"prompt":"hi","\\ud800":1}',
    "a raw control character": b'{"prompt":"a\nb"}',
}


def test_b09_bodies_that_are_no_json_object_are_refused(quiet: Server, quiet_texts: list[str]) -> None:
    with live_streams(quiet, quiet_texts):
        for path in (COMPLETIONS, CHAT, contract.PATH_RESPONSES, contract.PATH_TOKENIZE, contract.PATH_DETOKENIZE):
            for name, body in BODIES.items():
                if len(body) > 10**6 and path != COMPLETIONS:
                    continue
                assert check_error(quiet.post_bytes(path, body))["type"] == "invalid_request_error", name


@pytest.mark.parametrize("streamed", [False, True])
def test_b09_half_a_character_in_a_message_is_refused_before_any_header(quiet: Server, streamed: bool) -> None:
    flag = str(streamed).lower()
    for message in ('{"role":"user","content":"hi \\ud800"}', '{"role":"\\ud800","content":"hi"}'):
        body = f'{{"messages":[{message}],"stream":{flag}}}'
        answer = quiet.post_bytes(CHAT, body.encode())
        check_error(answer)
        assert answer.headers["content-type"] == "application/json"


def test_b09_whole_characters_and_nul_are_text(quiet: Server) -> None:
    for text, count in (("\\ud83e\\udd99", 4), ("a\\u0000b", 3)):
        answer = quiet.post_bytes(contract.PATH_TOKENIZE, f'{{"prompt":"{text}"}}'.encode())
        assert answer.json()["count"] == count


def test_b09_other_content_types_are_refused(quiet: Server) -> None:
    body = b'{"prompt":"p","max_tokens":2}'
    check_error(quiet.post_bytes(COMPLETIONS, body, "text/plain"))
    for charset in ("charset=utf-8", 'Charset="UTF-8"', "profile=x"):
        assert quiet.post_bytes(COMPLETIONS, body, f"application/json; {charset}").status_code == 200
    for charset in ("charset=utf-16", "charset=latin-1", "x=y; charset=iso-8859-1"):
        error = check_error(quiet.post_bytes(COMPLETIONS, body, f"application/json; {charset}"))
        assert error["code"] == "unsupported_content_type"


def test_fields_that_contradict_each_other_are_refused(quiet: Server) -> None:
    error = check_error(quiet.post(COMPLETIONS, {"prompt": "p", "n": 2, "best_of": 1}))
    assert (error["param"], error["code"]) == ("best_of", "invalid_value")
    error = check_error(quiet.post(COMPLETIONS, {"prompt": "p", "stream_options": {"include_usage": True}}))
    assert (error["param"], error["code"]) == ("stream_options", "invalid_value")


def test_b09_routes_and_methods_answer_in_openai_s_shape(quiet: Server) -> None:
    check_error(quiet.get("/v1/nothing"), 404)
    check_error(quiet.get("/v1/completions/"), 404)
    check_error(quiet.get(COMPLETIONS), 405)
    check_error(quiet.post("/health", {}), 405)
    assert check_error(quiet.get("/v1/models/nobody"), 404)["code"] == "model_not_found"
    for path, body in ((COMPLETIONS, {"prompt": "p"}), (CHAT, {"messages": [{"role": "user", "content": "p"}]})):
        assert check_error(quiet.post(path, {**body, "model": "nobody"}), 404)["code"] == "model_not_found"


def test_b23_sizes_are_bounded(quiet: Server, quiet_texts: list[str]) -> None:
    user = {"role": "user", "content": "p"}
    with live_streams(quiet, quiet_texts):
        assert check_error(quiet.post(COMPLETIONS, {"prompt": ["p"] * 10_000}))["param"] == "prompt"
        assert check_error(quiet.post(COMPLETIONS, {"prompt": ["p"] * 200, "n": 128}))["param"] == "n"
        assert (
            check_error(quiet.post(COMPLETIONS, {"prompt": "p", "stop": ["a", "b", "c", "d", "e"]}))["param"] == "stop"
        )
        assert check_error(quiet.post(COMPLETIONS, {"prompt": "p", "stop": [""]}))["param"] == "stop"
        assert check_error(quiet.post(CHAT, {"messages": [user] * 5000}))["param"] == "messages"
        assert check_error(quiet.post(CHAT, {"messages": [user], "logprobs": True, "top_logprobs": 16384}))
        too_long = check_error(quiet.post(COMPLETIONS, {"prompt": "p" * 9000}))
        assert (too_long["param"], too_long["code"]) == ("prompt", "context_length_exceeded")
        assert "maximum context length is 8192 tokens" in too_long["message"]
        far_too_long = check_error(quiet.post(COMPLETIONS, {"prompt": "p" * 200_000}))
        assert "resulted in at least " in far_too_long["message"], "bytes were counted, not tokens"
        too_long = check_error(quiet.post(CHAT, {"messages": [{"role": "user", "content": "p" * 9000}]}))
        assert (too_long["param"], too_long["code"]) == ("messages", "context_length_exceeded")
        too_long = check_error(quiet.post(COMPLETIONS, {"prompt": [5] * 9000}))
        assert too_long["code"] == "context_length_exceeded"
        assert "resulted in 9000 tokens" in too_long["message"]


def test_b23_a_body_over_the_limit_is_413(quiet: Server) -> None:
    body = b'{"prompt":"' + b"a" * contract.MAX_BODY_BYTES + b'"}'
    check_error(quiet.post_bytes(COMPLETIONS, body), 413)


def test_b23_a_body_without_a_declared_length_is_bounded_too(quiet: Server) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompt":"'
        for _ in range(33):
            yield b"a" * 1024 * 1024

    with quiet.client() as client:
        try:
            answer = client.post(COMPLETIONS, content=pieces(), headers={"content-type": "application/json"})
        except httpx.WriteError:
            return  # the server stopped reading and closed: the body was not taken either
    check_error(answer, 413)


@pytest.mark.parametrize("size", [20, 30])
def test_huge_prompts_are_refused_at_once(quiet: Server, size: int) -> None:
    body = b'{"prompt":"' + b"a" * (size * 1024 * 1024) + b'"}'
    answer = quiet.post_bytes(COMPLETIONS, body)
    assert check_error(answer)["param"] == "prompt"
    assert answer.elapsed.total_seconds() < 5
