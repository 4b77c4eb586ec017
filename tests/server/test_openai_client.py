"""The whole surface through OpenAI's own client, which checks each answer by its own types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.double import Double, Script, double
from tests.server.launch import Server, free_port
from tests.server.responding import TOOLS as FLAT_TOOLS
from tests.server.test_tool_calls import ARGUMENTS, ASK, TIME, TOOLS, WEATHER, answered, called, model, says

FIXED: dict[str, Any] = {"model": "scripted", "max_tokens": 20, "temperature": 0}
SAY: list[Any] = [{"role": "user", "content": "hello"}]


class Weather(BaseModel):
    """What an answer is parsed to, and what the client makes a strict function of."""

    city: Literal["Paris", "Rome"]
    days: Annotated[int, Field(ge=0, le=9)]


def client(server: Server | Double, strict: bool = True, **options: Any) -> openai.OpenAI:
    """Return a client; a strict one raises for an answer that its types do not describe."""
    chosen = {"api_key": "none", "max_retries": 0, "_strict_response_validation": strict, **options}
    return openai.OpenAI(base_url=f"{server.url}/v1", **chosen)


@pytest.fixture(scope="module")
def api(server: Server) -> Iterator[openai.OpenAI]:
    """A client of the session's server."""
    with client(server) as opened:
        yield opened


def test_models(api: openai.OpenAI) -> None:
    assert [card.id for card in api.models.list()] == ["scripted"]
    assert api.models.retrieve("scripted").id == "scripted"


# --- Completions ------------------------------------------------------------------------------------------------
def test_completions(api: openai.OpenAI) -> None:
    answer = api.completions.create(prompt="hello", n=3, **{**FIXED, "temperature": 2}, seed=7)
    again = api.completions.create(prompt="hello", n=3, **{**FIXED, "temperature": 2}, seed=7)
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in again.choices]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 60)


def test_completions_streamed(server: Server, api: openai.OpenAI) -> None:
    whole = api.completions.create(prompt="hello", **FIXED)
    # The client's type of a chunk has a finish_reason always, which OpenAI's own chunks have not.
    with client(server, strict=False) as lenient:
        chunks = list(
            lenient.completions.create(prompt="hello", stream=True, stream_options={"include_usage": True}, **FIXED)
        )
    assert "".join([choice.text for chunk in chunks for choice in chunk.choices]) == whole.choices[0].text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_log_probabilities_of_completions(server: Server, api: openai.OpenAI) -> None:
    told = api.completions.create(prompt="hello", logprobs=2, **FIXED).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == 20
    # Nor does its type of log-probabilities have the null that OpenAI gives a prompt's first token.
    with client(server, strict=False) as lenient:
        scored = lenient.completions.create(prompt="hello", echo=True, logprobs=0, **{**FIXED, "max_tokens": 0})
    assert scored.choices[0].text == "hello"
    assert scored.choices[0].logprobs.token_logprobs[0] is None
    assert scored.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]


# --- Chat -------------------------------------------------------------------------------------------------------
def test_chat(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(messages=SAY, **FIXED)
    chunks = list(
        api.chat.completions.create(messages=SAY, stream=True, stream_options={"include_usage": True}, **FIXED)
    )
    text = "".join([choice.delta.content or "" for chunk in chunks for choice in chunk.choices])
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 16, "the second finds the first's block"


def test_choices_and_log_probabilities_of_a_chat(api: openai.OpenAI) -> None:
    asked = {**FIXED, "temperature": 1, "seed": 3, "n": 2, "logprobs": True, "top_logprobs": 2}
    answer = api.chat.completions.create(messages=SAY, **asked)
    assert len({choice.message.content for choice in answer.choices}) == 2
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 20
        assert {len(entry.top_logprobs) for entry in choice.logprobs.content} == {2}


def test_a_stop_string_ends_a_chat() -> None:
    with double(says("Hello world")) as server, client(server) as api:
        choice = api.chat.completions.create(model="double", messages=SAY, stop=" wo").choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")


def test_a_chat_s_stream_is_accumulated() -> None:
    with (
        double(says("Hello world")) as server,
        client(server) as api,
        api.chat.completions.stream(model="double", messages=SAY) as stream,
    ):
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert (choice.message.content, choice.finish_reason) == ("Hello world", "stop")


def test_calls_are_read_and_answered() -> None:
    """Ask, read the calls, answer them: what the client sends back is what we sent it."""
    with model(says(f"One moment.\n{WEATHER}\n{TIME}")) as server, client(server) as api:
        first = api.chat.completions.create(model="double", messages=ASK, tools=TOOLS)
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
        assert json.loads(message.tool_calls[0].function.arguments) == json.loads(ARGUMENTS)
        answers = [answered("21", call.id) for call in message.tool_calls]
        chat = [*ASK, message.to_dict(), *answers]
        second = api.chat.completions.create(model="double", messages=chat, tools=TOOLS)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_streamed_calls_are_accumulated() -> None:
    with (
        model(says(f"One moment.\n{WEATHER}\n{TIME}", 5)) as server,
        client(server) as api,
        api.chat.completions.stream(model="double", messages=ASK, tools=TOOLS) as stream,
    ):
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("get_weather", ARGUMENTS),
        ("get_time", "{}"),
    ]
    assert message.content == "One moment."
    assert "tool_calls.function.arguments.delta" in kinds


def test_calls_need_not_be_made(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(
        model="scripted", messages=[*ASK, called(), answered()], tools=TOOLS, tool_choice="auto", max_tokens=8,
        parallel_tool_calls=False,
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


NAMED: Any = {"type": "function", "function": {"name": "Weather"}}
STRICT: Any = {"model": "scripted", "max_tokens": 4000, "seed": 1}


def test_forced_calls_are_parsed(api: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    answer = api.chat.completions.parse(messages=ASK, tools=tools, tool_choice=NAMED, **STRICT)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with api.chat.completions.stream(messages=ASK, tools=tools, tool_choice=NAMED, **STRICT) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments


def test_structured_chats_are_parsed(api: openai.OpenAI) -> None:
    answer = api.chat.completions.parse(messages=ASK, response_format=Weather, **STRICT)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    with api.chat.completions.stream(messages=ASK, response_format=Weather, **STRICT) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    anything = api.chat.completions.create(
        messages=ASK, response_format={"type": "json_object"}, logit_bias={"125": 100}, **STRICT
    )
    assert isinstance(json.loads(anything.choices[0].message.content), dict)


# --- Responses --------------------------------------------------------------------------------------------------
BRIEF: dict[str, Any] = {"model": "scripted", "max_output_tokens": 20, "temperature": 0}


def test_responses(api: openai.OpenAI) -> None:
    chat = api.chat.completions.create(messages=[{"role": "system", "content": "Be brief."}, *SAY], **FIXED)
    for given in ("hello", SAY, [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]):
        answer = api.responses.create(input=given, instructions="Be brief.", metadata={"run": "7"}, **BRIEF)
        assert answer.output_text == chat.choices[0].message.content
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.usage.total_tokens == chat.usage.total_tokens
        assert (answer.instructions, answer.metadata) == ("Be brief.", {"run": "7"})
    assert answer.usage.input_tokens_details.cached_tokens > 0


def test_responses_streamed(api: openai.OpenAI) -> None:
    whole = api.responses.create(input="hello", **BRIEF)
    events = list(api.responses.create(input="hello", stream=True, **BRIEF))
    text = "".join([event.delta for event in events if event.type == "response.output_text.delta"])
    assert text == whole.output_text == events[-1].response.output_text
    assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_s_stream_is_accumulated() -> None:
    with (
        model(says(f"One moment.\n{WEATHER}\n{TIME}\nDone.", 5)) as server,
        client(server) as api,
        api.responses.stream(model="double", input="hello", tools=FLAT_TOOLS) as stream,
    ):
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == "{}"
    assert final.output_text.split() == ["One", "moment.", "Done."]
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert calls == [("get_weather", ARGUMENTS), ("get_time", "{}")]


def test_a_response_s_calls_are_read_and_answered() -> None:
    with model(says(f"One moment.\n{WEATHER}")) as server, client(server) as api:
        given: list[Any] = [*ASK]
        first = api.responses.create(model="double", input=given, tools=FLAT_TOOLS)
        said, call = first.output
        assert (said.type, call.type, call.name) == ("message", "function_call", "get_weather")
        given += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "21"}]
        second = api.responses.create(model="double", input=given, tools=FLAT_TOOLS)
    assert second.usage.input_tokens > first.usage.input_tokens


def test_log_probabilities_of_responses(api: openai.OpenAI) -> None:
    told = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = api.responses.create(input="hello", **told, **BRIEF)
    entries = answer.output[0].content[0].logprobs
    assert len(entries) == 20
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    streamed = [
        entry
        for event in api.responses.create(input="hello", stream=True, **told, **BRIEF)
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in entries]


LONG: dict[str, Any] = {"model": "scripted", "max_output_tokens": 4000, "extra_body": {"seed": 1}}


def test_structured_responses_are_parsed(api: openai.OpenAI) -> None:
    answer = api.responses.parse(input="hello", text_format=Weather, **LONG)
    assert isinstance(answer.output_parsed, Weather)
    with api.responses.stream(input="hello", text_format=Weather, **LONG) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_a_response_s_forced_calls_are_parsed(api: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    named: Any = {"type": "function", "name": "Weather"}
    answer = api.responses.parse(input="hello", tools=tools, tool_choice=named, **LONG)
    (call,) = answer.output
    assert isinstance(call.parsed_arguments, Weather)
    with api.responses.stream(input="hello", tools=tools, tool_choice=named, **LONG) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.parsed_arguments == call.parsed_arguments


def test_the_asynchronous_client(server: Server, api: openai.OpenAI) -> None:
    async def run() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
            chat = await other.chat.completions.create(messages=SAY, stream=True, **FIXED)
            said = "".join([choice.delta.content or "" async for chunk in chat for choice in chunk.choices])
            events = await other.responses.create(input="hello", stream=True, **BRIEF)
            told = [event.delta async for event in events if event.type == "response.output_text.delta"]
            return said, "".join(told)

    text = api.chat.completions.create(messages=SAY, **FIXED).choices[0].message.content
    assert asyncio.run(run()) == (text, text)


# --- Errors -----------------------------------------------------------------------------------------------------
REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], str, str]] = [
    ({"temperature": 9}, openai.BadRequestError, "temperature", "invalid_value"),
    ({"model": "nobody"}, openai.NotFoundError, "model", "model_not_found"),
    ({"extra_body": {"adapter": "y"}}, openai.BadRequestError, "adapter", "unsupported_parameter"),
]


@pytest.mark.parametrize(("fields", "kind", "param", "code"), REFUSED)
def test_refusals_have_the_client_s_classes(
    api: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str, code: str
) -> None:
    asked = {"model": "scripted", **fields}
    for refused in (
        lambda: api.chat.completions.create(messages=SAY, **asked),
        lambda: api.chat.completions.create(messages=SAY, stream=True, **asked),
        lambda: api.responses.create(input="hello", **asked),
        lambda: api.responses.create(input="hello", stream=True, **asked),
    ):
        with pytest.raises(kind) as error:
            refused()
        assert (error.value.param, error.value.code, error.value.type) == (param, code, "invalid_request_error")


def test_what_is_not_stored_is_not_found(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'input'"):
        api.responses.create(input="hello", previous_response_id="resp_1", **BRIEF)
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("nobody")


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with double(Script([97]), api_keys_file=keys) as server:
        with client(server) as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with client(server, api_key="alpha") as right:
            assert right.responses.create(model="double", input="hello").output_text == "a"


def test_overload_is_a_rate_limit_error() -> None:
    with (
        double(Script([97], refuse="queue_full")) as server,
        client(server) as api,
        pytest.raises(openai.RateLimitError) as error,
    ):
        api.chat.completions.create(model="double", messages=SAY, stream=True)
    assert (error.value.code, error.value.response.headers["retry-after"]) == ("queue_full", "1")


def test_what_fails_is_a_server_error() -> None:
    with double(Script([97] * 9, fail_after=3)) as server, client(server) as api:
        with pytest.raises(openai.InternalServerError, match="not finite") as failed:
            api.chat.completions.create(model="double", messages=SAY)
        server.state.lifecycle.abort()
        with pytest.raises(openai.InternalServerError, match="shutting down") as draining:
            api.responses.create(model="double", input="hello")
    assert (failed.value.status_code, draining.value.status_code) == (500, 503)


def test_nobody_there_is_a_connection_error() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0) as nowhere,
        pytest.raises(openai.APIConnectionError),
    ):
        nowhere.models.list()


def test_a_broken_stream_is_an_error() -> None:
    with double(Script([97] * 9, fail_after=3)) as server, client(server) as api:
        with client(server, strict=False) as lenient, pytest.raises(openai.APIError, match="not finite"):
            list(lenient.completions.create(model="double", prompt="p", stream=True))
        with pytest.raises(openai.APIError, match="not finite"):
            list(api.chat.completions.create(model="double", messages=SAY, stream=True))
        *_, failed = api.responses.create(model="double", input="hello", stream=True)
        with api.responses.stream(model="double", input="hello") as stream, pytest.raises(RuntimeError):
            stream.get_final_response()
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.code == "server_error"
    assert failed.response.output_text == "aaa"
