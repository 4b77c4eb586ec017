"""Structured output over HTTP: what is asked is obeyed, and what is wrong hurts nobody else (B08, B19)."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo_engine import contract
from tests.server.launch import Server, finish_reasons, read_stream, serving, text_of, wait_until
from tests.server.test_constraints import BAD, COSTLY
from tests.server.test_refusals import check_error, live_streams, quiet_texts
from tests.server.test_tool_calls import TOOLS

COMPLETIONS = contract.PATH_COMPLETIONS
CHAT = contract.PATH_CHAT_COMPLETIONS
__all__ = ["quiet_texts"]  # a fixture

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "home": {"type": ["object", "null"], "properties": {"city": {"type": "string", "maxLength": 5}},
                 "required": ["city"], "additionalProperties": False},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}  # fmt: skip
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


def check_person(text: str) -> None:
    """Assert what `PERSON` says."""
    person = json.loads(text)
    assert list(person) == ["name", "age", "tags", "home"]
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 10
    assert type(person["age"]) is int
    assert 0 <= person["age"] <= 150
    assert len(person["tags"]) <= 3
    assert set(person["tags"]) <= {"a", "b", "c"}
    home = person["home"]
    assert home is None or (list(home) == ["city"] and len(home["city"]) <= 5)


def body_of(path: str, seed: int = 0, **fields: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": "who?"}]} if path == CHAT else {"prompt": "who?"}
    return {**said, "seed": seed, "temperature": 1.0, "max_tokens": 400, **fields}


def texts_of(answer: dict[str, Any]) -> list[str]:
    return [item["text"] if "text" in item else item["message"]["content"] for item in answer["choices"]]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_json_schema_is_obeyed(server: Server, path: str) -> None:
    for seed in range(5):
        answer = server.post(path, body_of(path, seed, response_format=AS_PERSON, n=2)).json()
        for text in texts_of(answer):
            check_person(text)
        assert [item["finish_reason"] for item in answer["choices"]] == ["stop", "stop"]


def test_a_stream_says_the_same(server: Server) -> None:
    body = body_of(CHAT, 3, response_format=AS_PERSON)
    whole = texts_of(server.post(CHAT, body).json())[0]
    stream = read_stream(server, CHAT, body)
    assert text_of(stream) == whole
    assert finish_reasons(stream) == ["stop"]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": r"[a-z]{2,5}(-\d{3})?"}, r"[a-z]{2,5}(-\d{3})?"),
        ({"structured_outputs": {"regex": r"\d+/[^/]"}}, r"\d+/[^/]"),
        ({"guided_choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"),
        ({"structured_outputs": {"choice": ["é", "🙂"]}}, "é|🙂"),
        ({"guided_grammar": 'root ::= "<" [a-c] ">" | "[" root "]"'}, r"(\[)*<[a-c]>(\])*"),
        ({"structured_outputs": {"grammar": 'start: "a" b\nb: /[xy]{3}/'}}, "a[xy]{3}"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 7}}, "[567]"),
        ({"structured_outputs": {"json": '{"const": "x"}'}}, '"x"'),
        ({"response_format": {"type": "json_object"}, "guided_regex": None, "logit_bias": {"125": 100}}, r"\{.*\}"),
    ],
)  # fmt: skip
def test_each_way_of_asking_is_obeyed(server: Server, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(4):
        answer = server.post(COMPLETIONS, body_of(COMPLETIONS, seed, **fields)).json()
        (item,) = answer["choices"]
        assert re.fullmatch(pattern, item["text"], re.DOTALL), item
        assert item["finish_reason"] == "stop"


def test_b08_a_large_bound_in_a_schema_is_obeyed(server: Server) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 2 * 10**10}}}
    for seed in range(6):
        answer = server.post(COMPLETIONS, body_of(COMPLETIONS, seed, response_format=schema)).json()
        if answer["choices"][0]["finish_reason"] == "stop":
            assert int(answer["choices"][0]["text"]) <= 2 * 10**10


def test_b19_what_does_not_fit_into_max_tokens_ends_by_length(server: Server) -> None:
    answer = server.post(COMPLETIONS, body_of(COMPLETIONS, guided_choice=["a long answer"], max_tokens=6)).json()
    assert (texts_of(answer), answer["choices"][0]["finish_reason"]) == (["a long"], "length")


def test_b19_a_stop_string_ends_a_text_before_its_grammar_does(server: Server) -> None:
    answer = server.post(COMPLETIONS, body_of(COMPLETIONS, guided_choice=["a long answer"], stop="ng")).json()
    assert (texts_of(answer), answer["choices"][0]["finish_reason"]) == (["a lo"], "stop")


def test_log_probabilities_are_the_model_s_own(server: Server) -> None:
    answer = server.post(COMPLETIONS, body_of(COMPLETIONS, guided_choice=["ab"], logprobs=1)).json()
    told = answer["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "b"]
    assert all(value < 0 for value in told["token_logprobs"])


def test_b19_a_bad_schema_is_refused_and_streams_beside_it_go_on(quiet: Server, quiet_texts: list[str]) -> None:
    field = {"schema": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar"}
    with live_streams(quiet, quiet_texts):
        for constraint, why in BAD:
            value = json.loads(constraint.text) if constraint.kind == "schema" else constraint.text
            refused = check_error(quiet.post(COMPLETIONS, body_of(COMPLETIONS, **{field[constraint.kind]: value})))
            assert refused["param"] == field[constraint.kind]
            assert why in refused["message"]
        megabyte = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "a" * 2**20}}}
        refused = check_error(quiet.post(CHAT, body_of(CHAT, response_format=megabyte)))
        assert refused["param"] == "response_format.json_schema.schema"
        refused = check_error(quiet.post(COMPLETIONS, body_of(COMPLETIONS, guided_json=COSTLY)))
        assert "too" in refused["message"]
        assert len(quiet.tokenisers()) <= 2


def test_b19_many_schemas_leave_nothing_behind(quiet: Server) -> None:
    def ask(count: int) -> int:
        schema = {"type": "object", "properties": {f"key {count}": {"type": "boolean"}}, "required": [f"key {count}"],
                  "additionalProperties": False}  # fmt: skip
        answer = quiet.post(COMPLETIONS, body_of(COMPLETIONS, count, guided_json=schema)).json()
        assert list(json.loads(texts_of(answer)[0])) == [f"key {count}"]
        return int(quiet.engine().memory_info().rss)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))
        before = quiet.engine().memory_info().rss
        list(pool.map(ask, range(40, 240)))
    assert quiet.engine().memory_info().rss < before + (24 << 20)


def test_b30_clients_that_leave_while_their_grammar_is_compiled_leave_nothing(quiet: Server) -> None:
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1200)}}

    def leave(count: int) -> None:
        body = body_of(COMPLETIONS, count, guided_json={**large, "title": str(count)}, stream=True)
        with quiet.client() as client, client.stream("POST", COMPLETIONS, json=body) as response:
            assert response.status_code == 200

    leaving = [threading.Thread(target=leave, args=(count,)) for count in range(4)]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()
    quiet.wait_idle(30)


def test_neither_process_imports_torch_for_a_grammar(server: Server) -> None:
    server.post(COMPLETIONS, body_of(COMPLETIONS, guided_choice=["a"]))
    for process in (server.process.pid, server.engine().pid, *(child.pid for child in server.tokenisers())):
        assert "libtorch" not in Path(f"/proc/{process}/maps").read_text()


def test_an_engine_that_was_started_again_knows_the_tokens_too(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?eos=0", "--drain-propagation", "0") as server:
        for _ in range(2):
            answer = server.post(COMPLETIONS, body_of(COMPLETIONS, guided_choice=["ab"])).json()
            assert texts_of(answer) == ["ab"]
            server.engine().kill()
            wait_until(lambda: server.status("/ready") == 503, 20, "its end noticed")
            wait_until(lambda: server.status("/ready") == 200, 60, "ready")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"guided_choice": ["yes"]}),
        (COMPLETIONS, {"structured_outputs": {"regex": "[0-9]+"}}),
        (COMPLETIONS, {"guided_choice": ["yes"], "echo": True, "logprobs": 1}),
        (CHAT, {"guided_choice": ["yes"]}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}),
    ],
)
def test_rules_that_leave_nothing_to_say_are_the_client_s_mistake(
    quiet: Server, path: str, fields: dict[str, Any]
) -> None:
    """Told with the field that the other one leaves nothing of."""
    named = next(iter(fields))
    fields = {**fields, "allowed_token_ids": [97]}
    answer = quiet.post(path, body_of(path, **fields))
    error = check_error(answer)
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsatisfiable")
    assert error["param"].split(".")[0] == named
    assert "allowed_token_ids" in error["message"]
    *_, last = read_stream(quiet, path, body_of(path, **fields))
    assert last["error"] == error
