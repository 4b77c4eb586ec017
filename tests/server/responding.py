"""Asks /v1/responses, whole and streamed, and holds the two against each other."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from octavo_engine import contract
from tests.server.double import Double, double
from tests.server.launch import Server
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
