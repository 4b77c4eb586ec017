"""/v1/responses: items in, items and typed events out, and the same prompts and texts as chat's."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from octavo_engine.server.protocol.responses.fields import LOGPROBS
from tests.server.double import EOS, FIRST_PIECE, Double, Script, double
from tests.server.launch import Server, serving, wait_until
from tests.server.test_clients_leaving import GONE_SECONDS, connect, outcomes, running
from tests.server.test_forced_calls import PLACE
from tests.server.test_refusals import check_error
from tests.server.test_structured_output import PERSON, check_person
from tests.server.test_tool_calls import ARGUMENTS, MISTRAL, PIECES, TIME, WEATHER, says
from tests.server.test_tool_calls import TOOLS as CHAT_TOOLS

RESPONSES = contract.PATH_RESPONSES
CHAT = contract.PATH_CHAT_COMPLETIONS
TOOLS = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
ASK = "Weather in Paris?"

model = partial(double, max_model_len=2048)
"""Room for tools: a token is a byte."""


def read_events(server: Double | Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a stream's events, each named by its type and numbered."""
    with server.client() as client, client.stream("POST", RESPONSES, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *frames, rest = answer.read().decode().split("\n\n")
    assert rest == ""
    events = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the items together from the events alone; whatever says that something is done must agree."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert all(item["status"] != "in_progress" for item in items), "one after another"
            items.append(event["item"])
        elif kind == "output_item.done":
            last = items[event["output_index"]]
            assert event["item"] == {**last, "status": event["item"]["status"]}
            last["status"] = event["item"]["status"]
        elif "item_id" in event:
            _grow(items[event["output_index"]], kind, event)
    return items


def _grow(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    assert event["item_id"] == item["id"]
    assert item["status"] == "in_progress"
    if kind == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
    elif kind == "function_call_arguments.done":
        assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])
    elif kind == "content_part.added":
        assert event["content_index"] == len(item["content"])
        item["content"].append(event["part"])
    else:
        part = item["content"][event["content_index"]]
        if kind == "output_text.delta":
            part["text"] += event["delta"]
            part["logprobs"] += event["logprobs"]
        elif kind == "output_text.done":
            assert (event["text"], event["logprobs"]) == (part["text"], part["logprobs"])
        else:
            assert (kind, event["part"]) == ("content_part.done", part)


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what differs each time, having looked at it."""
    assert response["id"].startswith("resp_")
    assert type(response["created_at"]) is int
    output = []
    for item in response["output"]:
        assert item["id"].startswith("msg_" if item["type"] == "message" else "fc_")
        assert item["type"] == "message" or item["call_id"].startswith("call_")
        output.append({key: value for key, value in item.items() if key not in ("id", "call_id")})
    # A prompt that was there before is found in the cache.
    usage = {key: value for key, value in response["usage"].items() if key != "input_tokens_details"}
    return {**response, "id": "", "created_at": 0, "output": output, "usage": usage}


def ask(server: Double | Server, **fields: Any) -> dict[str, Any]:
    """Return a response, which must be the same when it is streamed, event by event and at the end."""
    body = {"input": ASK, **fields}
    answer = server.post(RESPONSES, body)
    assert answer.status_code == 200, answer.text
    response = dict(answer.json())
    events = read_events(server, body)
    created, started, *_, ended = events
    assert [created["type"], started["type"]] == ["response.created", "response.in_progress"]
    assert created["response"] == started["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert created["response"].keys() == ended["response"].keys() == response.keys()
    assert created["response"]["id"] == ended["response"]["id"]
    assert ended["type"] == f"response.{ended['response']['status']}"
    assert rebuilt(events) == ended["response"]["output"]
    assert without_ids(ended["response"]) == without_ids(response)
    return response


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def calls_of(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["name"], item["arguments"], item["status"]) for item in items]


# --- Answers ----------------------------------------------------------------------------------------------------
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


# --- Input ------------------------------------------------------------------------------------------------------
USER = {"role": "user", "content": ASK}
SAID = {
    "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
    "content": [{"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": []}],
}  # fmt: skip
DONE = {"role": "assistant", "content": "Done."}


def call(identifier: str, name: str = "get_time", arguments: str = "{}") -> dict[str, Any]:
    own = {"id": f"fc_{identifier}", "status": "completed"}
    return {"type": "function_call", "call_id": identifier, "name": name, "arguments": arguments, **own}


def answer_to(identifier: str, output: Any = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identifier, "output": output}


def chat_call(identifier: str, name: str = "get_time", arguments: str = "{}") -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_answer(identifier: str, content: str = "42") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identifier, "content": content}


def chat_said(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}


PARIS = ("2", "get_weather", '{"city": "Paris"}')
INPUTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a text": ({"input": ASK}, [USER]),
    "an empty text": ({"input": ""}, [{"role": "user", "content": ""}]),
    "instructions": (
        {"input": ASK, "instructions": "Be brief."},
        [{"role": "system", "content": "Be brief."}, USER],
    ),
    "roles": (
        {"input": [{"role": "developer", "content": "s"}, {"type": "message", **USER}, DONE, {**USER, "type": None}]},
        [{"role": "developer", "content": "s"}, USER, DONE, USER],
    ),
    "parts": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]}]},
        [{"role": "user", "content": "a\nb"}],
    ),
    "what was answered": ({"input": [USER, SAID, USER]}, [USER, chat_said("One moment."), USER]),
    "a refusal": (
        {"input": [USER, {**SAID, "content": [{"type": "refusal", "refusal": "No."}]}]},
        [USER, chat_said("No.")],
    ),
    "calls and what came of them": (
        {"input": [USER, call("1"), call(*PARIS), answer_to("2"), answer_to("1", "noon")]},
        [USER, chat_said("", chat_call("1"), chat_call(*PARIS)), chat_answer("2"), chat_answer("1", "noon")],
    ),
    "calls after a text": (
        {"input": [USER, SAID, call("1"), answer_to("1")]},
        [USER, chat_said("One moment.", chat_call("1")), chat_answer("1")],
    ),
    "a text after calls": (
        {"input": [USER, SAID, call("1"), DONE, answer_to("1")]},
        [USER, chat_said("One moment.Done.", chat_call("1")), chat_answer("1")],
    ),
    "one call after another": (
        {"input": [USER, call("1"), answer_to("1"), call(*PARIS), answer_to("2"), DONE]},
        [USER, chat_said("", chat_call("1")), chat_answer("1"),
         chat_said("", chat_call(*PARIS)), chat_answer("2"), DONE],
    ),
    "an answer in parts": (
        {"input": [USER, call("1"), answer_to("1", [{"type": "input_text", "text": "42"}])]},
        [USER, chat_said("", chat_call("1")), chat_answer("1")],
    ),
    "two of an assistant's messages": ({"input": [USER, DONE, DONE]}, [USER, DONE, DONE]),
}  # fmt: skip


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("tools", [False, True])
def test_the_prompt_is_chat_s(case: str, tools: bool) -> None:
    given, messages = INPUTS[case]
    script = Script([97])
    with model(script) as server:
        body = {**given, "tools": TOOLS} if tools else given
        chat = {"messages": messages, "tools": CHAT_TOOLS} if tools else {"messages": messages}
        assert server.post(RESPONSES, body).status_code == 200
        assert server.post(CHAT, chat).status_code == 200
    told, wanted = script.submits
    assert bytes(told.prompt) == bytes(wanted.prompt)


def test_what_was_answered_can_be_sent_back() -> None:
    with model(says(f"One moment.\n{WEATHER}\n{TIME}\nDone.")) as server:
        first = server.post(RESPONSES, {"input": [USER], "tools": TOOLS}).json()
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        answers = [answer_to(item["call_id"]) for item in calls]
        again = {"input": [USER, *first["output"], *answers], "tools": TOOLS}
        assert server.post(RESPONSES, again).status_code == 200
        chat_calls = [chat_call(item["call_id"], item["name"], item["arguments"]) for item in calls]
        chat_answers = [chat_answer(item["call_id"]) for item in calls]
        messages = [USER, chat_said(text_of(first), *chat_calls), *chat_answers]
        assert server.post(CHAT, {"messages": messages, "tools": CHAT_TOOLS}).status_code == 200
        told, wanted = server.script.submits[-2:]
    assert bytes(told.prompt) == bytes(wanted.prompt)


ILL_FORMED: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({}, "input"),
    "null": ({"input": None}, "input"),
    "no items": ({"input": []}, "input"),
    "a number": ({"input": 7}, "input"),
    "an object": ({"input": USER}, "input"),
    "too many items": ({"input": [USER] * 4097}, "input"),
    "an item that is text": ({"input": ["x"]}, "input[0]"),
    "no role": ({"input": [{"content": "x"}]}, "input[0].role"),
    "another role": ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "null for content": ({"input": [{"role": "assistant", "content": None}]}, "input[0].content"),
    "a chat's part": ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0].type"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    "a part without text": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text",
    ),
    "reasoning": ({"input": [USER, {"type": "reasoning", "id": "rs_1", "summary": []}]}, "input[1].type"),
    "a number for a type": ({"input": [{"type": 7, **USER}]}, "input[0].type"),
    "a reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    "a call without a name": ({"input": [{**call("1"), "name": None}]}, "input[0].name"),
    "a call without an id": ({"input": [{**call("1"), "call_id": None}]}, "input[0].call_id"),
    "arguments that are an object": ({"input": [{**call("1"), "arguments": {}}]}, "input[0].arguments"),
    "too many calls": ({"input": [call(str(number)) for number in range(129)]}, "input[128]"),
    "an answer to nothing": ({"input": [answer_to("1")]}, "input[0].call_id"),
    "an answer before its call": ({"input": [answer_to("1"), call("1")]}, "input[0].call_id"),
    "a number for an answer": ({"input": [call("1"), answer_to("1", 42)]}, "input[1].output"),
    "instructions that are none": ({"instructions": ["x"]}, "instructions"),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "fewer than the least": ({"max_output_tokens": 3, "min_tokens": 4}, "min_tokens"),
    "a tool of the server's": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "a chat's tool": ({"tools": CHAT_TOOLS}, "tools[0].name"),
    "a tool that is text": ({"tools": ["f"]}, "tools[0]"),
    "the same tool twice": ({"tools": [TOOLS[1], TOOLS[1]]}, "tools[1].name"),
    "a tool that loads later": ({"tools": [{**TOOLS[1], "defer_loading": True}]}, "tools[0].defer_loading"),
    "a schema that is none": ({"tools": [{**TOOLS[1], "parameters": 7}]}, "tools[0].parameters"),
    "a choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "a choice of another tool": ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    "a chat's choice": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.name",
    ),
    "allowed tools": ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    "another choice": ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    "another format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "a chat's format": ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format.schema"),
    "a format that is text": ({"text": {"format": "json"}}, "text.format"),
    "a schema that cannot be": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "#/nowhere"}}}},
        "text.format.schema",
    ),
    "a format beside tools": ({"text": {"format": {"type": "json_object"}}, "tools": TOOLS}, "text"),
    "two ways to say it": ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex"),
    "another verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity"),
    "something else to include": ({"include": ["everything"]}, "include[0]"),
    "alternatives of nothing": ({"top_logprobs": 3}, "top_logprobs"),
    "log-probabilities of calls": ({"include": [LOGPROBS], "tools": TOOLS}, "include"),
    "metadata that is text": ({"metadata": "x"}, "metadata"),
    "metadata of numbers": ({"metadata": {"a": 1}}, "metadata.a"),
    "too much metadata": ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    "stream options without a stream": ({"stream_options": {}}, "stream_options"),
    "obfuscation": (
        {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation",
    ),
    "another model": ({"model": "nobody"}, "model"),
}  # fmt: skip


@pytest.mark.parametrize("case", ILL_FORMED)
def test_what_cannot_be_answered_is_refused_with_its_path(server: Server, case: str) -> None:
    body, param = ILL_FORMED[case]
    answer = server.post(RESPONSES, {"input": ASK, **body} if case != "no input" else body)
    assert check_error(answer, 404 if case == "another model" else 400)["param"] == param


REMEDIES = {
    "previous_response_id": ("resp_1", "'input'"),
    "conversation": ({"id": "conv_1"}, "'input'"),
    "prompt": ({"id": "pmpt_1"}, "'instructions'"),
    "background": (True, "stream it"),
    "truncation": ("auto", "leave items out"),
    "messages": ([USER], "'input'"),
    "max_tokens": (9, "'max_output_tokens'"),
    "max_new_tokens": (9, "'max_output_tokens'"),
    "response_format": ({"type": "json_object"}, "'text'"),
    "logprobs": (True, LOGPROBS),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_refusal_says_what_to_do_instead(server: Server, name: str) -> None:
    value, remedy = REMEDIES[name]
    error = check_error(server.post(RESPONSES, {"input": ASK, name: value}))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert remedy in error["message"]


def test_items_that_only_other_tools_would_have_can_be_included(server: Server) -> None:
    body = {
        "input": ASK,
        "include": ["reasoning.encrypted_content", "file_search_call.results"],
        "max_output_tokens": 2,
    }
    assert server.post(RESPONSES, {**body, "stream_options": None}).status_code == 200
    assert server.post(RESPONSES, {**body, "stream": True, "stream_options": {}}).status_code == 200


def test_an_input_too_long_is_refused_before_any_header(server: Server) -> None:
    for size, text in ((9000, "resulted in"), (200_000, "resulted in at least")):
        error = check_error(server.post(RESPONSES, {"input": "p" * size, "stream": True}))
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
        assert f"your input {text}" in error["message"]


NO_SYSTEM = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
{{ m.content }}{% endfor %}"""
NO_CALLS = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_what_the_template_refuses_is_found_in_the_request() -> None:
    with double(Script([97]), template=NO_SYSTEM) as server:
        error = check_error(server.post(RESPONSES, {"input": ASK, "instructions": "Be brief."}))
    assert (error["param"], "no system role" in error["message"]) == ("input", True)
    with double(Script([97]), template=NO_CALLS) as server:
        body = {"input": [USER, SAID, USER, call("1"), answer_to("1")], "instructions": "Be brief."}
        error = check_error(server.post(RESPONSES, body))
        deaf = check_error(server.post(RESPONSES, {"input": ASK, "tools": TOOLS}))
    assert error["param"] == "input[3]"
    assert "input[3] has no place" in error["message"]
    assert deaf["param"] == "tools"


# --- The route --------------------------------------------------------------------------------------------------
def test_a_key_is_needed_here_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with double(Script([97]), api_keys_file=keys) as server, server.client() as client:
        check_error(client.post(RESPONSES, json={"input": "p"}), 401)
        shown = client.post(RESPONSES, json={"input": "p"}, headers={"authorization": "Bearer alpha"})
    assert shown.status_code == 200


def test_nothing_can_be_got_back(server: Server) -> None:
    check_error(server.get(RESPONSES), 405)
    check_error(server.get(f"{RESPONSES}/resp_1"), 404)
    check_error(server.post(f"{RESPONSES}/resp_1/cancel", {}), 404)


def test_it_is_counted_and_salted_as_all_others_are() -> None:
    with double(Script([97] * 4)) as server:
        assert server.post(RESPONSES, {"input": "p", "max_output_tokens": 3, "cache_salt": "mine"}).status_code == 200
        check_error(server.post(RESPONSES, {"input": "p" * 500}))
        counters = server.state.counters
        assert (counters.outcomes["length"], counters.outcomes["rejected"]) == (1, 1)
        assert counters.generated_tokens == 3
        server.state.lifecycle.abort()
        refused = server.post(RESPONSES, {"input": "p"})
        assert [submit.salt for submit in server.script.submits] == ["direct\0mine"]
    assert check_error(refused, 503)["type"] == "service_unavailable_error"
    assert refused.headers[contract.HEADER_NOT_STARTED] == "1"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_full_queue_answers_429_before_any_header(streamed: bool) -> None:
    with double(Script([97], refuse="queue_full")) as server:
        refused = server.post(RESPONSES, {"input": "p", "stream": streamed})
    assert check_error(refused, 429)["code"] == "queue_full"
    assert refused.headers["retry-after"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(quiet: Server, streamed: bool) -> None:
    before = outcomes(quiet)["abort"]
    body = {"input": "p", "max_output_tokens": 5000, "ignore_eos": True, "stream": streamed}
    connection = connect(quiet.port, RESPONSES, body)
    wait_until(lambda: running(quiet) == 1, 10, "running")
    connection.close()
    quiet.wait_idle(GONE_SECONDS)
    assert outcomes(quiet)["abort"] == before + 1


@pytest.mark.parametrize("per_step", [1, 2])
def test_a_stream_that_breaks_ends_as_failed_with_what_there_was(per_step: int) -> None:
    with double(Script([97] * 9, per_step=per_step, fail_after=3)) as server:
        *events, failed = read_events(server, {"input": "p"})
        whole = check_error(server.post(RESPONSES, {"input": "p"}), 500)
    assert failed["type"] == "response.failed"
    response = failed["response"]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["error"] == {"code": "server_error", "message": whole["message"]}
    assert "not finite" in whole["message"]
    (item,) = response["output"]
    assert item == {**rebuilt(events)[0], "status": "incomplete"}
    assert not any(event["type"].endswith("done") for event in events)


def test_b33_a_killed_engine_fails_streams_and_another_one_serves(tmp_path: Path) -> None:
    body = {"input": "p", "max_output_tokens": 4000}
    with serving(tmp_path, "scripted://?step=10ms&eos=0", "--drain-propagation", "0") as server:
        streamed: list[list[dict[str, Any]]] = []
        whole: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda: streamed.append(read_events(server, body))),
            threading.Thread(target=lambda: whole.append(server.post(RESPONSES, body))),
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: running(server) == 2, 10, "both run")
        first = server.engine().pid
        os.kill(first, signal.SIGKILL)
        for thread in threads:
            thread.join(10)
        wait_until(lambda: server.status("/ready") == 200, 20, "another engine")
        assert server.post(RESPONSES, {"input": "p", "max_output_tokens": 2}).status_code == 200
        server.wait_idle()
    (events,) = streamed
    assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert check_error(whole[0], 500)["code"] == "engine_error"
