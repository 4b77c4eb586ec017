"""Calls that must be made, and strict functions: the answer is held to what the functions take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine import contract
from tests.server.launch import Server, read_stream
from tests.server.test_refusals import check_error
from tests.server.test_tool_calls import ASK, tool

CHAT = contract.PATH_CHAT_COMPLETIONS
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [tool("get_weather", parameters=PLACE), tool("get_time")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check_call(call: dict[str, Any]) -> None:
    """The call is one of a function that there is, with what it takes."""
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    if name == "get_time":
        assert isinstance(arguments, dict)
    else:
        assert name == "get_weather"
        assert set(arguments) == {"city", "days"}
        assert arguments["city"] in ("Paris", "Rome")
        assert 0 <= arguments["days"] <= 9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_a_call_that_must_be_made_is_made(server: Server, choice: Any, seed: int) -> None:
    body = {
        "messages": ASK, "tools": TOOLS[:1] if choice == "required" else TOOLS, "tool_choice": choice, "seed": seed,
        "parallel_tool_calls": False, "max_tokens": 2000,
    }  # fmt: skip
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    (choice_,) = answer.json()["choices"]
    assert choice_["finish_reason"] == "tool_calls"
    assert choice_["message"]["content"] is None
    (call,) = choice_["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    check_call(call)
    chunks = read_stream(server, CHAT, body)
    pieces = [
        entry["function"]["arguments"]
        for chunk in chunks[:-1]
        for item in chunk["choices"]
        for entry in item["delta"].get("tool_calls", ())
        if "arguments" in entry["function"]
    ]
    assert "".join(pieces) == call["function"]["arguments"]


@pytest.mark.parametrize("seed", range(4))
def test_strict_functions_hold_the_calls_of_free_answers(server: Server, seed: int) -> None:
    strict = [tool("get_weather", parameters=PLACE, strict=True), tool("get_time")]
    body = {"messages": ASK, "tools": strict, "seed": seed, "max_tokens": 60}
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    for call in answer.json()["choices"][0]["message"].get("tool_calls") or ():
        check_call(call)


def test_strict_is_no_part_of_the_prompt(server: Server) -> None:
    def prompt(strict: bool) -> Any:
        tools = [tool("get_weather", parameters=PLACE, strict=strict)]
        return server.post(contract.PATH_TOKENIZE, {"messages": ASK, "tools": tools}).json()["tokens"]

    assert prompt(True) == prompt(False)


def test_what_the_text_must_be_like_is_not_said_twice(server: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "response_format": {"type": "json_object"}, "max_tokens": 4}
    assert check_error(server.post(CHAT, body))["param"] == "response_format"
    assert server.post(CHAT, {**body, "tool_choice": "none"}).status_code == 200


def test_a_schema_that_cannot_be_held_to_is_refused(server: Server) -> None:
    strange = [tool("f", parameters={"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})]
    body = {"messages": ASK, "tools": strange, "tool_choice": "required", "max_tokens": 4}
    assert check_error(server.post(CHAT, body))["param"] == "tools"
