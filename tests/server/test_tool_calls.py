"""Tool calls in answers, whole and streamed alike (B18), whatever else was asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from octavo_engine import contract
from tests.server.double import EOS, FIRST_PIECE, Double, Script, double
from tests.server.launch import read_stream
from tests.server.test_refusals import check_error

CHAT = contract.PATH_CHAT_COMPLETIONS
ASK = [{"role": "user", "content": "Weather in Paris?"}]


def called(arguments: str = '{"city": "Paris"}', identifier: str = "call_1", **message: Any) -> dict[str, Any]:
    call = {"id": identifier, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **message}


def answered(content: Any = "42", identifier: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identifier, "content": content}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [
    tool("get_weather", description="Of a city.",
         parameters={"type": "object", "properties": {"city": {"type": "string"}}}),
    tool("get_time"),
]  # fmt: skip
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris }\\" \N{LLAMA}"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"city": "Paris }\\" \N{LLAMA}"}'


def says(text: str, per_step: int = 1, **script: Any) -> Script:
    """Return the script of a model that writes `text`, byte by byte, and ends."""
    return Script([*text.encode(), EOS], per_step=per_step, **script)


model = partial(double, max_model_len=2048)
"""Room for tools: a token is a byte."""


def ask(server: Double, **fields: Any) -> dict[str, Any]:
    """Return an answer's choice, which must be the same when it is streamed, as must all others."""
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 400, **fields}
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    chunks = read_stream(server, CHAT, body)  # type: ignore[arg-type]
    for choice in choices:
        assert without_ids(streamed(chunks, choice["index"])) == without_ids(choice)
    return dict(choices[0])


def streamed(chunks: list[Any], index: int) -> dict[str, Any]:
    """Join a streamed choice's chunks, checking that id, type and name come once, first."""
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    finishes, logprobs = [], []
    stop_reason = None
    for chunk in chunks[:-1]:
        for item in chunk["choices"]:
            if item["index"] != index:
                continue
            delta = item["delta"]
            message["role"] = message.get("role") or delta["role"]
            if delta.get("content") is not None:
                message["content"] = (message["content"] or "") + delta["content"]
            for entry in delta.get("tool_calls", ()):
                if entry["index"] == len(calls):
                    assert entry["type"] == "function"
                    calls.append({"id": entry["id"], "type": "function", "function": entry["function"]})
                else:
                    assert entry["index"] == len(calls) - 1
                    assert set(entry) == {"index", "function"}
                    assert set(entry["function"]) == {"arguments"}
                    calls[-1]["function"]["arguments"] += entry["function"]["arguments"]
            finishes += [item["finish_reason"]] if item["finish_reason"] else []
            logprobs += (item["logprobs"] or {"content": []})["content"]
            stop_reason = item.get("stop_reason", stop_reason)
    (finish,) = finishes
    if calls:
        message["tool_calls"] = calls
    end = {"finish_reason": finish, "stop_reason": stop_reason}
    return {"index": index, "message": message, "logprobs": logprobs, **end}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [{**call, "id": call["id"][:5]} for call in message.get("tool_calls", ())]
    logprobs = choice["logprobs"]
    return {
        **choice,
        "stop_reason": choice.get("stop_reason"),
        "logprobs": logprobs["content"] if isinstance(logprobs, dict) else logprobs or [],
        "message": {"role": message["role"], "content": message["content"], "calls": calls},
    }


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("per_step", [1, 7, 1000])
def test_b18_two_calls_and_no_content(per_step: int) -> None:
    with model(says(f"{WEATHER}\n{TIME}", per_step)) as server:
        choice = ask(server)
        usage = server.post(CHAT, {"messages": ASK, "tools": TOOLS}).json()["usage"]
    assert calls_of(choice) == [("get_weather", ARGUMENTS), ("get_time", "{}")]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(identifier.startswith("call_") for identifier in ids)
    assert usage["completion_tokens"] == len(f"{WEATHER}\n{TIME}".encode()) + 1, "markup is generated, too"


def test_b18_content_stands_beside_calls() -> None:
    with model(says(f"Let me see.\n{WEATHER}")) as server:
        choice = ask(server)
    assert choice["message"]["content"] == "Let me see."
    assert len(calls_of(choice)) == 1


def test_text_without_calls_is_what_it_would_be_without_tools() -> None:
    text = " a < b, <tool_call> is a tag.\n"
    with model(says(text)) as server:
        with_tools, plain = ask(server), ask(server, tools=[])
    assert with_tools == plain
    assert plain["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert plain["finish_reason"] == "stop"


def test_b18_a_bound_within_a_call_is_told_and_nothing_leaks() -> None:
    with model(says(WEATHER)) as server:
        for limit in (1, 9, 20, len(WEATHER[: WEATHER.index("Paris")])):
            choice = ask(server, max_tokens=limit)
            assert choice["finish_reason"] == "length"
            assert not choice["message"]["content"]
    assert calls_of(choice) == [("get_weather", '{"city": "')]


@pytest.mark.parametrize("per_step", [1, 3, 1000])
def test_b02_a_stop_string_within_a_call(per_step: int) -> None:
    with model(says(f"Well. {WEATHER}", per_step)) as server:
        inside = ask(server, stop=["Paris"])
        around = ask(server, stop=["</tool_call>"])
        before = ask(server, stop=["l. <tool"])
    assert calls_of(inside) == [("get_weather", '{"city": "')]
    assert (inside["finish_reason"], inside["stop_reason"]) == ("stop", "Paris")
    assert calls_of(around) == [("get_weather", ARGUMENTS)]
    assert (around["finish_reason"], around["stop_reason"]) == ("tool_calls", "</tool_call>")
    assert (before["message"]["content"], before["finish_reason"]) == ("Wel", "stop")


def test_no_text_at_all_is_an_empty_text() -> None:
    with model(says("")) as server:
        assert ask(server)["message"]["content"] == ""


def test_choices_have_calls_of_their_own() -> None:
    with model(says(WEATHER)) as server:
        body = {"messages": ASK, "tools": TOOLS, "n": 3}
        choices = server.post(CHAT, body).json()["choices"]
        ask(server, n=3)
    assert [calls_of(choice) for choice in choices] == [[("get_weather", ARGUMENTS)]] * 3
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3


def test_logprobs_tell_every_token_of_a_call() -> None:
    with model(says(TIME)) as server:
        choice = ask(server, logprobs=True, top_logprobs=1)
    told = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(told[:-1]) == TIME


def test_only_the_first_of_calls_that_may_not_be_parallel() -> None:
    with model(says(f"{WEATHER}\n{TIME}")) as server:
        choice = ask(server, parallel_tool_calls=False)
    assert calls_of(choice) == [("get_weather", ARGUMENTS)]
    assert choice["finish_reason"] == "tool_calls"
    with model(says(f"{WEATHER}\n{TIME[:-15]}")) as server:
        assert ask(server, parallel_tool_calls=False)["finish_reason"] == "tool_calls", "what is told is whole"
        assert ask(server)["finish_reason"] == "stop"


SAYS_TOOLS = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{% for message in messages %}{{ message.content }}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (SAYS_TOOLS + "{# <|python_tag|> 'parameters' #}", '{"name": "get_time", "parameters": {}}'),
        (SAYS_TOOLS + "{# [TOOL_CALLS] #}", '[TOOL_CALLS][{"name": "get_time", "arguments": {}}]'),
    ],
)
def test_the_template_tells_how_calls_are_read(template: str, text: str) -> None:
    with model(says(text), template=template) as server:
        assert calls_of(ask(server)) == [("get_time", "{}")]
    with model(says(TIME), template=template, tool_call_parser="hermes") as server:
        assert calls_of(ask(server)) == [("get_time", "{}")]


def test_tools_that_the_model_would_never_hear_of_are_refused() -> None:
    body = {"messages": ASK, "tools": TOOLS}
    with model(says(TIME), template="{% for m in messages %}{{ m.content }}{% endfor %}") as server:
        deaf = check_error(server.post(CHAT, body))
        assert ask(server, tool_choice="none")["message"]["content"] == TIME
    with model(says(TIME), tool_call_parser="none") as server:
        told_none = check_error(server.post(CHAT, body))
    assert deaf["param"] == told_none["param"] == "tools"
    assert "--tool-call-parser" in told_none["message"]


def test_with_the_choice_of_none_there_is_no_call() -> None:
    with model(says(TIME)) as server:
        choice = ask(server, tool_choice="none")
        prompts = [submit.prompt for submit in server.script.submits]
        ask(server, tools=[])
    assert choice["message"]["content"] == TIME
    assert prompts[0] == server.script.submits[-1].prompt, "the model is told of no tools"


# --- Special tokens ---------------------------------------------------------------------------------------------
MISTRAL = SAYS_TOOLS + "{# [TOOL_CALLS] #}"
PIECES = [b"[TOOL_CALLS]", b"[ARGS]"]


def test_tags_that_are_special_tokens_are_seen_where_calls_are_looked_for() -> None:
    script = Script([FIRST_PIECE, *b"get_time", FIRST_PIECE + 1, *b"{}", EOS])
    with model(script, PIECES, MISTRAL, special=PIECES) as server:
        choice, plain = ask(server), ask(server, tools=[])
    assert calls_of(choice) == [("get_time", "{}")]
    assert plain["message"]["content"] == "get_time{}"


def test_special_tokens_that_mark_no_call_are_no_text() -> None:
    script = Script([FIRST_PIECE, *b" is what?", EOS])
    with model(script, PIECES, MISTRAL, special=PIECES) as server:
        assert ask(server)["message"] == {"role": "assistant", "content": " is what?", "refusal": None}
    with model(script, PIECES, MISTRAL) as server:
        assert ask(server)["message"]["content"] == "[TOOL_CALLS] is what?"
