"""/v1/responses: items in, the prompt that chat would have, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_engine.server.protocol.responses.fields import LOGPROBS
from tests.server.double import Script, double
from tests.server.launch import Server
from tests.server.responding import (
    ASK,
    CHAT,
    RESPONSES,
    TOOLS,
    model,
    text_of,
)
from tests.server.test_refusals import check_error
from tests.server.test_tool_calls import TIME, WEATHER, says
from tests.server.test_tool_calls import TOOLS as CHAT_TOOLS

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
    "a chat's format": ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format.json_schema"),
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
