"""/v1/responses: what the items and the typed events of an answer are, and that its texts are chat's."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from octavo_engine.server.protocol.responses.fields import LOGPROBS
from tests.server.double import EOS, FIRST_PIECE, Script, double
from tests.server.launch import Server
from tests.server.responding import (
    ASK,
    CHAT,
    RESPONSES,
    TOOLS,
    ask,
    calls_of,
    model,
    read_events,
    text_of,
)
from tests.server.test_forced_calls import PLACE
from tests.server.test_structured_output import PERSON, check_person
from tests.server.test_tool_calls import ARGUMENTS, MISTRAL, PIECES, TIME, WEATHER, says
from tests.server.test_tool_calls import TOOLS as CHAT_TOOLS

OPENED = ["output_item.added", "content_part.added"]
CLOSED = ["output_text.done", "content_part.done", "output_item.done"]
MESSAGE = [*OPENED, "output_text.delta", *CLOSED]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]
ANSWERS: dict[str, tuple[str, dict[str, Any], list[str], list[str]]] = {
    "a text": ("Hello", {}, MESSAGE, ["completed"]),
    "a text beside tools": ("Hello", {"tools": TOOLS}, MESSAGE, ["completed"]),
    "nothing": ("", {}, [*OPENED, *CLOSED], ["completed"]),
    "a call": (TIME, {"tools": TOOLS}, CALL, ["completed"]),
    "two calls": (f"{WEATHER}\n{TIME}", {"tools": TOOLS}, [*CALL, *CALL], ["completed", "completed"]),
    "calls after a text": (f"Hm.\n{WEATHER}", {"tools": TOOLS}, [*MESSAGE, *CALL], ["completed", "completed"]),
    "a text after a call": (f"{TIME}\nDone.", {"tools": TOOLS}, [*CALL, *MESSAGE], ["completed", "completed"]),
    "texts around a call": (f"Hm.\n{TIME}\nDone.", {"tools": TOOLS}, [*MESSAGE, *CALL, *MESSAGE], ["completed"] * 3),
    "a text cut off": ("Hello", {"max_output_tokens": 3}, MESSAGE, ["incomplete"]),
    "a call cut off": (
        f"Hm.\n{WEATHER}",
        {"tools": TOOLS, "max_output_tokens": WEATHER.index("Paris") + 4},
        [*MESSAGE, *CALL],
        ["completed", "incomplete"],
    ),
    "a call cut off before its name": (
        WEATHER,
        {"tools": TOOLS, "max_output_tokens": 9},
        [*OPENED, *CLOSED],
        ["incomplete"],
    ),
    "a call that a stop string cut off": (WEATHER, {"tools": TOOLS, "stop": "Paris"}, CALL, ["incomplete"]),
    "a call alone": (f"{WEATHER}\n{TIME}", {"tools": TOOLS, "parallel_tool_calls": False}, CALL, ["completed"]),
}


@pytest.mark.parametrize("per_step", [1, 7, 1000])
@pytest.mark.parametrize("case", ANSWERS)
def test_the_events_and_items_of_an_answer(case: str, per_step: int) -> None:
    text, fields, order, statuses = ANSWERS[case]
    with model(says(text, per_step)) as server:
        response = ask(server, **fields)
        kinds = [event["type"].removeprefix("response.") for event in read_events(server, {"input": ASK, **fields})]
    cut = case.startswith(("a text cut", "a call cut"))
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        "created", "in_progress", *order, "incomplete" if cut else "completed",
    ]  # fmt: skip
    assert [item["status"] for item in response["output"]] == statuses
    assert response["status"] == ("incomplete" if cut else "completed")
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    assert response["error"] is None


@pytest.mark.parametrize("per_step", [1, 7, 1000])
def test_what_the_items_hold(per_step: int) -> None:
    with model(says(f"One moment.\n{WEATHER}\n{TIME}\nDone.", per_step)) as server:
        response = ask(server, tools=TOOLS)
        chat = server.post(CHAT, {"messages": [{"role": "user", "content": ASK}], "tools": CHAT_TOOLS}).json()
    first, weather, time, last = response["output"]
    part = {"type": "output_text", "annotations": [], "logprobs": []}
    assert first == {
        "id": first["id"], "type": "message", "status": "completed", "role": "assistant",
        "content": [{**part, "text": "One moment."}],
    }  # fmt: skip
    assert weather == {
        "id": weather["id"], "type": "function_call", "status": "completed", "call_id": weather["call_id"],
        "name": "get_weather", "arguments": ARGUMENTS,
    }  # fmt: skip
    assert (time["name"], time["arguments"]) == ("get_time", "{}")
    assert len({item["id"] for item in response["output"]} | {weather["call_id"], time["call_id"]}) == 6
    assert last["content"][0]["text"].strip() == "Done."
    assert text_of(response) == chat["choices"][0]["message"]["content"]


def test_special_tokens_that_are_tags_are_seen() -> None:
    script = Script([FIRST_PIECE, *b"get_time", FIRST_PIECE + 1, *b"{}", EOS])
    with model(script, PIECES, MISTRAL, special=PIECES) as server:
        assert calls_of(ask(server, tools=TOOLS)) == [("get_time", "{}", "completed")]


def test_a_stop_string_ends_a_text() -> None:
    with model(says("Hello world")) as server:
        response = ask(server, stop=[" wo"])
    assert (text_of(response), response["status"]) == ("Hello", "completed")


def test_usage_counts_as_chat_s_does() -> None:
    with model(says("Hello", cached_tokens=16)) as server:
        usage = ask(server)["usage"]
        chat = server.post(CHAT, {"messages": [{"role": "user", "content": ASK}]}).json()["usage"]
    prompt = chat["prompt_tokens"]
    assert usage == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": prompt - 16},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": chat["total_tokens"],
    }


def test_an_answer_says_what_was_asked_and_that_nothing_is_stored() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {
        "instructions": "Be brief.", "max_output_tokens": 9, "metadata": {"run": "7"}, "parallel_tool_calls": False,
        "temperature": 0.5, "top_p": 0.25, "tool_choice": "none",
    }  # fmt: skip
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    tools = [{"type": "function", "name": "f", "description": "F.", "parameters": schema, "strict": True}]
    with model(says("{}")) as server:
        plain = ask(server)
        given = ask(server, **asked, text={"format": form}, tools=tools, store=True, user="me", service_tier="auto")
        named = {"type": "function", "name": "f"}
        chosen = server.post(RESPONSES, {"input": "p", "tools": [{**named, "strict": None}], "tool_choice": named})
    assert plain["model"] == "double"
    assert plain["object"] == "response"
    assert {name: plain[name] for name in ("instructions", "max_output_tokens", "max_tool_calls")} == {
        "instructions": None, "max_output_tokens": None, "max_tool_calls": None,
    }  # fmt: skip
    assert (plain["temperature"], plain["top_p"], plain["top_logprobs"]) == (1.0, 1.0, 0)
    assert (plain["tools"], plain["tool_choice"], plain["parallel_tool_calls"]) == ([], "auto", True)
    assert (plain["text"], plain["metadata"], plain["truncation"]) == ({"format": {"type": "text"}}, {}, "disabled")
    for response in (plain, given):
        assert (response["store"], response["background"], response["previous_response_id"]) == (False, False, None)
    assert {name: given[name] for name in asked} == asked
    assert (given["text"], given["tools"]) == ({"format": form}, tools)
    nothing = {"type": "object", "properties": {}}
    assert chosen.json()["tools"] == [{**named, "parameters": nothing, "strict": False}]
    assert chosen.json()["tool_choice"] == named


def test_without_a_limit_the_rest_of_the_context_is_taken() -> None:
    with double(Script([97] * 400), max_model_len=128) as server:
        response = server.post(RESPONSES, {"input": "p"}).json()
    assert (response["usage"]["total_tokens"], response["status"]) == (128, "incomplete")


def test_log_probabilities_are_chat_s() -> None:
    chat = {"messages": [{"role": "user", "content": ASK}], "logprobs": True, "top_logprobs": 2}
    with model(says("Hi \N{LLAMA}!")) as server:
        told = ask(server, include=[LOGPROBS], top_logprobs=2)
        alone = ask(server, include=[LOGPROBS])
        silent = ask(server)
        wanted = server.post(CHAT, chat).json()["choices"][0]["logprobs"]["content"]
    assert told["output"][0]["content"][0]["logprobs"] == wanted
    assert told["top_logprobs"] == 2
    entries = alone["output"][0]["content"][0]["logprobs"]
    assert entries == [{**entry, "top_logprobs": []} for entry in wanted]
    assert silent["output"][0]["content"][0]["logprobs"] == []


def test_a_text_of_one_special_token_is_told_with_its_log_probability() -> None:
    with model(says("")) as server:
        (item,) = ask(server, include=[LOGPROBS])["output"]
    (part,) = item["content"]
    assert (part["text"], [entry["token"] for entry in part["logprobs"]]) == ("", ["<|endoftext|>"])


@pytest.mark.parametrize("seed", range(3))
def test_a_json_schema_is_obeyed(server: Server, seed: int) -> None:
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    response = ask(server, text={"format": form}, seed=seed, max_output_tokens=400)
    check_person(text_of(response))
    assert response["status"] == "completed"


def test_a_json_object_is_an_object(server: Server) -> None:
    response = ask(server, text={"format": {"type": "json_object"}}, logit_bias={"125": 100}, seed=1)
    assert isinstance(json.loads(text_of(response)), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=["any", "named"])
def test_a_call_that_must_be_made_is_made(server: Server, choice: Any) -> None:
    tools = [{"type": "function", "name": "get_weather", "parameters": PLACE}]
    response = ask(server, tools=tools, tool_choice=choice, parallel_tool_calls=False, seed=2, max_output_tokens=2000)
    ((name, arguments, status),) = calls_of(response)
    assert (name, status) == ("get_weather", "completed")
    assert set(json.loads(arguments)) == {"city", "days"}
