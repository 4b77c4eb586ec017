"""The OpenAPI document says what the server does: every route, every field, and no value refused that is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from starlette.routing import Route

from octavo_engine import contract
from octavo_engine.server.app import public_application
from octavo_engine.server.counters import Counters
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.protocol import openapi
from octavo_engine.server.protocol.fields import Field, Treatment, Unreadable, schema_of
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import ServerState
from tests.server.double import Script, double
from tests.server.launch import Server

DOCUMENT = openapi.document(("one", "two"), "1.2.3", keys=False, vocab_size=None)
HONOURED = {
    f"{operation.path} {field.name}": field
    for operation in openapi.OPERATIONS
    for field in (operation.table or {}).values()
    if field.treatment is Treatment.HONOURED
}


def validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator({"allOf": [schema], "components": DOCUMENT["components"]})


def takes(field: Field, value: Any) -> bool:
    try:
        field.read(value)
    except Unreadable:
        return False
    return True


def test_every_route_is_described_and_no_other() -> None:
    counters = Counters()
    state = ServerState(ServerSettings(served_names=("one",)), EngineClient(counters, 30), counters, Lifecycle(0, 0))
    routes = {
        (method.lower(), route.path.replace(":path", ""))
        for route in public_application(state).routes  # type: ignore[attr-defined]
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD" and route.path != contract.PATH_OPENAPI
    }
    assert routes == {(operation.method, operation.path) for operation in openapi.OPERATIONS}
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == routes


def test_the_schemas_are_schemas() -> None:
    for operation in openapi.OPERATIONS:
        found = DOCUMENT["paths"][operation.path][operation.method]
        if operation.table is not None:
            Draft202012Validator.check_schema(found["requestBody"]["content"]["application/json"]["schema"])
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("field", HONOURED.values(), ids=HONOURED)
def test_every_honoured_field_says_what_it_takes(field: Field) -> None:
    assert schema_of(field.read)


@pytest.mark.parametrize("operation", [each for each in openapi.OPERATIONS if each.table], ids=lambda each: each.path)
def test_every_field_of_a_table_is_in_the_document(operation: openapi.Operation) -> None:
    body = DOCUMENT["paths"][operation.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"].keys() == operation.table.keys()
    for name, field in operation.table.items():
        if field.treatment is Treatment.REFUSED:
            assert body["properties"][name]["enum"] == [None, *field.no_op]


CALLED = {"name": "f", "arguments": "{}"}
TAKEN: dict[str, list[Any]] = {
    "prompt": ["", "a", [1], ["a", "b"], [[1], [2, 3]], ["a", [1]]],
    "stop": ["a", ["a", "b"], []],
    "logit_bias": [{}, {"1": 0.5, "7": -100}],
    "stream_options": [
        {},
        {"include_usage": True},
        {"include_usage": None, "x": None},
        {"continuous_usage_stats": False},
    ],
    "logprobs": [0, 20, False, True],
    "prompt_logprobs": [0, 20, False],
    "messages": [
        [{"role": "user", "content": "a"}],
        [{"role": "developer", "content": [{"type": "text", "text": "a"}], "name": "x"}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": None, "function": {"name": "f"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        ],
        [{"role": "assistant", "content": None, "prefix": False, "images": [], "audio": None}],
    ],
    "tools": [
        [],
        [{"type": "function", "name": "f", "strict": None, "parameters": {"type": "object"}}],
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    ],
    "tool_choice": [
        "none",
        "auto",
        "required",
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "name": "f"},
    ],
    "response_format": [
        {"type": "text"},
        {"type": "json_object", "x": None},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        {"type": "json_schema", "json_schema": {"schema": True, "description": None, "x": None}, "schema": None},
    ],
    "structured_outputs": [{}, {"regex": "a+"}, {"json": None, "choice": ["a"]}, {"json_object": True}, {"x": False}],
    "guided_json": [{}, True, '{"type": "object"}', "true"],
    "guided_choice": [["a"]],
    "cache_salt": ["s"],
    "allowed_token_ids": [[0], [1, 2]],
    "stop_token_ids": [[], [3]],
    "tokens": [[], [1, 2]],
    "input": [
        "a",
        ["a", [1]],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": None},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
    ],
    "text": [
        {},
        {"format": {"type": "text", "x": None}, "x": None},
        {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    ],
    "include": [[], ["message.output_text.logprobs"]],
    "metadata": [{}, {"a": "b"}],
    "encoding_format": ["float", "base64"],
}
"""What each field takes, of those whose shape is their own."""

EDGES = [None, True, False, 0, 1, -1, 1.5, 2**31, 10**20, "", "a", "none", [], [1], ["a"], [[]], [None], {}, {"a": 1}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_taken_is_allowed(name: str) -> None:
    field = HONOURED[name]
    check = validator(schema_of(field.read))
    taken = 0
    for value in (*TAKEN.get(field.name, ()), *EDGES):
        if value is not None and takes(field, value):
            check.validate(value)
            taken += 1
    assert taken or not TAKEN.get(field.name)


@pytest.mark.parametrize("name", TAKEN)
def test_each_example_is_taken_somewhere(name: str) -> None:
    fields = [field for field in HONOURED.values() if field.name == name]
    assert [value for value in TAKEN[name] if not any(takes(field, value) for field in fields)] == []


ANY_ID = {"schemas": {**DOCUMENT["components"]["schemas"], "TokenId": {"type": "integer"}}}
"""Readers do not know the model, which is asked later."""
CHECKS = {
    name: Draft202012Validator({"allOf": [schema_of(field.read)], "components": ANY_ID})
    for name, field in HONOURED.items()
}


@given(value=JSON)
def test_nothing_taken_is_forbidden_whatever_it_is(value: Any) -> None:
    for name, field in HONOURED.items():
        if value is not None and takes(field, value):
            assert CHECKS[name].is_valid(value), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("/v1/completions temperature", 2.1),
        ("/v1/completions top_p", 0),
        ("/v1/completions n", 0),
        ("/v1/completions n", "1"),
        ("/v1/completions stream", 1),
        ("/v1/completions stop", ["a"] * 5),
        ("/v1/completions prompt", []),
        ("/v1/completions logit_bias", {"x": 1}),
        ("/v1/completions guided_regex", ""),
        ("/v1/chat/completions messages", []),
        ("/v1/chat/completions messages", [{"role": "user"}]),
        ("/v1/chat/completions tool_choice", "any"),
        ("/detokenize tokens", [-1]),
    ],
)
def test_the_document_says_what_is_refused(name: str, value: Any) -> None:
    field = HONOURED[name]
    assert not takes(field, value)
    assert not validator(schema_of(field.read)).is_valid(value)


def test_the_served_document_knows_the_model(server: Server) -> None:
    served = server.get(contract.PATH_OPENAPI).json()
    assert served["components"]["schemas"]["TokenId"]["maximum"] == 258
    body = served["paths"][contract.PATH_COMPLETIONS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"] == {"enum": ["scripted", None]}
    assert "security" not in served["paths"][contract.PATH_COMPLETIONS]["post"]


def test_where_keys_are_asked_for_the_document_asks_and_says_so(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with double(Script([97]), api_keys_file=keys) as server, server.client() as client:
        assert client.get(contract.PATH_OPENAPI).status_code == 401
        served = client.get(contract.PATH_OPENAPI, headers={"authorization": "Bearer alpha"}).json()
    open_paths = {
        path for path, methods in served["paths"].items() if not any("security" in each for each in methods.values())
    }
    assert open_paths == contract.PATHS_WITHOUT_KEY
    assert served["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


def test_answers_look_as_the_document_says(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": True}
    answers = {
        "Completion": server.post(contract.PATH_COMPLETIONS, {"prompt": "a", "max_tokens": 2, "logprobs": 1}),
        "ChatCompletion": server.post(contract.PATH_CHAT_COMPLETIONS, chat),
        "Error": server.post(contract.PATH_COMPLETIONS, {"prompt": 1}),
        "Model": server.get(f"{contract.PATH_MODELS}/scripted"),
    }
    for name, answer in answers.items():
        validator({"$ref": f"#/components/schemas/{name}"}).validate(answer.json())
