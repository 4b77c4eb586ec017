"""Embeddings over HTTP: OpenAI's shapes, what is refused, and what a client that leaves leaves behind."""

from __future__ import annotations

import base64
import math
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo_engine import contract
from octavo_engine.ipc import messages as m
from octavo_engine.server.protocol import tables
from octavo_engine.server.protocol.embeddings import unit_vector
from octavo_engine.server.protocol.fields import Field, Treatment
from tests.server.double import Script, double
from tests.server.launch import Server, wait_until
from tests.server.test_clients_leaving import GONE_SECONDS, connect, outcomes, running
from tests.server.test_refusals import check_error

EMBEDDINGS = contract.PATH_EMBEDDINGS
WIDTH = 8
"""Of the scripted model's vectors."""


def vectors(server: Any, **body: Any) -> list[Any]:
    """Return the embeddings of an answer, in order, its shape checked."""
    answer = server.post(EMBEDDINGS, body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert set(told) == {"object", "data", "model", "usage"}
    assert told["object"] == "list"
    for index, entry in enumerate(told["data"]):
        assert set(entry) == {"object", "index", "embedding"}
        assert (entry["object"], entry["index"]) == ("embedding", index)
    usage = told["usage"]
    assert usage == {"prompt_tokens": usage["total_tokens"], "total_tokens": usage["total_tokens"]}
    return [entry["embedding"] for entry in told["data"]]


def float32(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


# --- What is answered -------------------------------------------------------------------------------------------
def test_the_four_shapes_of_an_input(server: Server) -> None:
    (once,) = vectors(server, input="once")
    (twice,) = vectors(server, input="twice")
    assert len(once) == WIDTH
    assert once != twice
    for shape in (["once"], list(b"once"), [list(b"once")]):
        assert vectors(server, input=shape) == [once]
    for shape in (
        ["once", "twice", "once"],
        [list(b"once"), list(b"twice"), list(b"once")],
        ["once", [*b"twice"], "once"],
    ):
        assert vectors(server, input=shape) == [once, twice, once]


def test_every_vector_has_length_1_and_every_input_s_tokens_count(server: Server) -> None:
    inputs = ["a", "some words", "é"]
    for vector in vectors(server, input=inputs):
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)
    usage = server.post(EMBEDDINGS, {"input": inputs}).json()["usage"]
    assert usage == {"prompt_tokens": 13, "total_tokens": 13}


def test_base64_is_the_same_float32(server: Server) -> None:
    inputs = ["once", "twice"]
    numbers = vectors(server, input=inputs, encoding_format="float")
    encoded = vectors(server, input=inputs, encoding_format="base64")
    assert [base64.b64decode(text) for text in encoded] == [float32(vector) for vector in numbers]


def test_the_official_client_works(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    inputs = ["once", "twice"]
    by_default = client.embeddings.create(model="scripted", input=inputs)
    as_floats = client.embeddings.create(model="scripted", input=inputs, encoding_format="float", user="me")
    assert [entry.embedding for entry in by_default.data] == [entry.embedding for entry in as_floats.data]
    assert [len(entry.embedding) for entry in by_default.data] == [WIDTH, WIDTH]
    assert (by_default.model, by_default.usage.prompt_tokens, by_default.usage.total_tokens) == ("scripted", 9, 9)
    assert client.embeddings.create(model="scripted", input=list(b"once")).data[0].embedding == (
        by_default.data[0].embedding
    )
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="scripted", input="once", dimensions=4)
    assert refused.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="once")


def test_what_reaches_the_engine() -> None:
    script = Script()
    with double(script) as server:
        vectors(server, input=["abc", "d"], priority=-5, cache_salt="mine")
    first, second = script.submits
    assert (first.prompt, second.prompt) == (struct.pack("<3i", *b"abc"), struct.pack("<i", 100))
    for submit in script.submits:
        assert (submit.pooled, submit.stop.max_tokens, submit.n) == (True, 0, 1)
        assert (submit.priority, submit.salt) == (-5, "direct\0mine")
    assert not script.aborts, "what has ended is not aborted"


def test_a_long_list_reaches_the_engine_in_parts_and_is_answered_in_order() -> None:
    script = Script(hold=threading.Event())
    inputs = [[index % 250, 1, 2] for index in range(600)]
    with double(script) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(vectors, server, input=inputs)
        wait_until(lambda: len(script.submits) >= contract.MAX_PROMPTS, 10, "the first part")
        assert len(script.submits) == contract.MAX_PROMPTS
        assert script.hold is not None
        script.hold.set()
        told = answer.result(60)
    assert len(script.submits) == 600
    for index, vector in enumerate(told):
        length = math.hypot(index % 250, 3, 2, 3)
        assert vector == pytest.approx([index % 250 / length, 3 / length, 2 / length, 3 / length], abs=1e-6)


def test_an_answer_of_megabytes_is_whole() -> None:
    with double(Script(), embeddings=m.Embeddings(width=3000)) as server:
        told = vectors(server, input=[[index, 1] for index in range(60)])
    assert [len(vector) for vector in told] == [3000] * 60


@pytest.mark.parametrize(("numbers", "unit"), [([3.0, 4.0], [0.6, 0.8]), ([0.0, 0.0], [0.0, 0.0]), ([2e-30], [1.0])])
def test_a_unit_vector_keeps_the_direction(numbers: list[float], unit: list[float]) -> None:
    assert unit_vector(float32(numbers)).tolist() == pytest.approx(unit, abs=1e-7)


# --- Dimensions -------------------------------------------------------------------------------------------------
def test_a_shorter_vector_is_the_beginning_with_length_1_again() -> None:
    with double(Script(), embeddings=m.Embeddings(width=4, shortens=True)) as server:
        (shorter,) = vectors(server, input=[3, 9, 9, 9], dimensions=2)
        (whole,) = vectors(server, input=[3, 9, 9, 9], dimensions=4)
        assert [whole] == vectors(server, input=[3, 9, 9, 9])
    assert shorter == pytest.approx([0.6, 0.8], abs=1e-6)
    assert len(whole) == 4


@pytest.mark.parametrize(
    ("embeddings", "dimensions", "sentence"),
    [
        (m.Embeddings(width=4), 2, "must be 4 here"),
        (m.Embeddings(width=4, shortens=True), 5, "at most 4"),
        (m.Embeddings(width=4, shortens=True, lengths=(1, 2)), 3, "one of 1, 2"),
        (m.Embeddings(width=4, shortens=True), 0, "between 1 and"),
        (m.Embeddings(width=4, shortens=True), "2", "an integer"),
    ],
)
def test_other_lengths_are_refused(embeddings: m.Embeddings, dimensions: Any, sentence: str) -> None:
    with double(Script(), embeddings=embeddings) as server:
        error = check_error(server.post(EMBEDDINGS, {"input": "a", "dimensions": dimensions}))
    assert error["param"] == "dimensions"
    assert sentence in error["message"]


def test_a_model_whose_embeddings_are_not_served_says_why() -> None:
    with double(Script([97]), embeddings=m.Embeddings(width=4, refusal="Pooled by cls.")) as server:
        error = check_error(server.post(EMBEDDINGS, {"input": "a"}))
        assert server.post(contract.PATH_COMPLETIONS, {"prompt": "a", "max_tokens": 1}).status_code == 200
    assert (error["message"], error["code"]) == ("Pooled by cls.", "unsupported_model")


# --- What is refused --------------------------------------------------------------------------------------------
BAD_INPUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "missing": ({}, "input", "is missing"),
    "null": ({"input": None}, "input", "must not be null"),
    "empty text": ({"input": ""}, "input", "must not be empty"),
    "empty list": ({"input": []}, "input", "not empty"),
    "empty text in a list": ({"input": ["a", ""]}, "input[1]", "must not be empty"),
    "empty tokens in a list": ({"input": [[1], []]}, "input[1]", "must not be empty"),
    "number": ({"input": 7}, "input", "must be a string"),
    "object in a list": ({"input": [{"text": "a"}]}, "input[0]", "must be a string"),
    "too many": ({"input": ["a"] * (contract.MAX_EMBEDDING_INPUTS + 1)}, "input", "at most 2048 inputs"),
    "outside the vocabulary": ({"input": [1, 10**6]}, "input", "outside the vocabulary"),
    "negative": ({"input": [-1]}, "input", "outside the vocabulary"),
    "format": ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
}


@pytest.mark.parametrize(("body", "param", "sentence"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_what_cannot_be_embedded_is_refused(server: Server, body: dict[str, Any], param: str, sentence: str) -> None:
    error = check_error(server.post(EMBEDDINGS, body))
    assert error["param"] == param
    assert sentence in error["message"]


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_an_input_may_be_as_long_as_the_context_and_no_longer(kind: str) -> None:
    def input_of(count: int) -> Any:
        return "a" * count if kind == "text" else [97] * count

    with double(Script(), max_model_len=64) as server:
        assert len(vectors(server, input=["short", input_of(64)])) == 2
        error = check_error(server.post(EMBEDDINGS, {"input": input_of(65)}))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert "65 tokens" in error["message"]
    assert "completion" not in error["message"]


def test_more_tokens_than_the_queue_takes_are_refused_as_a_whole() -> None:
    with double(Script(), max_queue_tokens=100) as server:
        assert len(vectors(server, input=["a" * 50, "b" * 50])) == 2
        assert len(vectors(server, input="a" * 101)) == 1, "one input is never too long for the queue"
        error = check_error(server.post(EMBEDDINGS, {"input": ["a" * 50, "b" * 51]}))
    assert error["param"] == "input"
    assert "--max-queue-tokens" in error["message"]


def test_a_body_over_the_limit_is_413(server: Server) -> None:
    body = b'{"input": "' + b"a" * contract.MAX_BODY_BYTES + b'"}'
    assert check_error(server.post_bytes(EMBEDDINGS, body), 413)["code"] == "request_too_large"


def test_a_full_queue_is_429() -> None:
    with double(Script(refuse="queue_full")) as server:
        answer = server.post(EMBEDDINGS, {"input": ["a", "b"]})
        assert check_error(answer, 429)["type"] == "rate_limit_error"
        assert answer.headers["retry-after"]
        assert server.state.counters.outcomes["rejected"] == 1


def test_one_input_that_fails_fails_the_request() -> None:
    with double(Script(fail_after=0)) as server:
        error = check_error(server.post(EMBEDDINGS, {"input": ["a", "b"]}), 500)
        assert (error["code"], "not finite" in error["message"]) == ("engine_error", True)
        assert server.state.client.open_requests == 0


def test_without_a_key_nothing_is_embedded(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with double(Script(), api_keys_file=keys) as server:
        assert check_error(server.post(EMBEDDINGS, {"input": "a"}), 401)["code"] == "invalid_api_key"


# --- The field table --------------------------------------------------------------------------------------------
def fields(treatment: Treatment) -> list[Any]:
    chosen = [field for field in tables.EMBEDDINGS.values() if field.treatment is treatment]
    return [pytest.param(field, id=field.name) for field in chosen]


@pytest.mark.parametrize("field", fields(Treatment.REFUSED))
def test_refused_fields_are_refused_and_named_unless_they_ask_for_nothing(server: Server, field: Field) -> None:
    assert check_error(server.post(EMBEDDINGS, {"input": "a", field.name: ["anything"]}))["param"] == field.name
    plain = vectors(server, input="a")
    for value in (None, *field.no_op):
        assert vectors(server, input="a", **{field.name: value}) == plain, value


@pytest.mark.parametrize("field", fields(Treatment.IGNORED))
def test_ignored_fields_change_nothing(server: Server, field: Field) -> None:
    assert field.why, "an ignored field says why that is harmless"
    plain = vectors(server, input="a")
    for value in ("x", True, {"a": 1}, 7):
        assert vectors(server, input="a", **{field.name: value}) == plain


# --- Company, counters, leaving ---------------------------------------------------------------------------------
def test_what_is_counted(quiet: Server) -> None:
    names = ("octavo_prompt_tokens_total", "octavo_generated_tokens_total", "octavo_time_to_first_token_seconds")

    def totals() -> dict[str, float]:
        return {**quiet.metrics(*names), **{f"ended {name}": count for name, count in outcomes(quiet).items()}}

    before = totals()
    vectors(quiet, input=["three", "inputs", "here"])
    gained = {key: value - before[key] for key, value in totals().items() if value != before[key]}
    assert gained == {"octavo_prompt_tokens_total": 15, "ended stop": 3}


def test_a_client_that_leaves_takes_all_its_inputs_along(quiet: Server) -> None:
    before = outcomes(quiet)
    connection = connect(quiet.port, EMBEDDINGS, {"input": ["a" * 8000] * 60})
    wait_until(lambda: running(quiet) > 0, 20, "running")
    connection.close()
    quiet.wait_idle(GONE_SECONDS)
    after = outcomes(quiet)
    assert after["abort"] > before["abort"]
    assert after["abort"] + after["stop"] == before["abort"] + before["stop"] + 60
