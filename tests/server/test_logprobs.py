"""Log-probabilities, the prompt's own too, in the shapes of OpenAI and vLLM (B11), whatever the text does meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine import contract
from octavo_engine.server.jobs import Job, Limits, Prepared
from octavo_engine.server.prepare import prepare
from tests.server.double import EOS, FIRST_PIECE, Script, double, text_model
from tests.server.launch import Server, read_stream
from tests.server.test_refusals import check_error

COMPLETIONS = contract.PATH_COMPLETIONS
CHAT = contract.PATH_CHAT_COMPLETIONS
MESSAGES = [{"role": "user", "content": "hi"}]


def joined(chunks: list[dict[str, Any]], choice: int = 0) -> dict[str, Any]:
    """Return a streamed choice as the whole one would look: text and the four arrays, or the chat's list."""
    text, arrays = "", {}
    for chunk in chunks:
        for item in () if isinstance(chunk, str) else chunk["choices"]:
            if item["index"] != choice:
                continue
            text += item["text"] if "text" in item else item["delta"].get("content", "")
            for name, values in (item["logprobs"] or {}).items():
                arrays[name] = arrays.get(name, []) + (values or [])
    return {"text": text, "logprobs": arrays}


def completion(server: Any, **fields: Any) -> dict[str, Any]:
    """Return the choice of an answer, which must be the same when it is streamed."""
    body = {"prompt": "The sky is", "max_tokens": 3, **fields}
    answer = server.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    streamed = joined(read_stream(server, COMPLETIONS, body))
    assert streamed["text"] == choice["text"]
    assert streamed["logprobs"] == (choice["logprobs"] or {})
    return choice


def check_arrays(choice: dict[str, Any], first_offset: int = 0) -> None:
    """The arrays are parallel, and the text at each offset begins with its token."""
    arrays, text = choice["logprobs"], choice["text"]
    assert set(arrays) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(values) for values in arrays.values()}) == 1
    assert arrays["text_offset"][0] == first_offset
    for token, offset in zip(arrays["tokens"], arrays["text_offset"], strict=True):
        assert text[offset:].startswith(token), (token, text[offset:])


def test_echo_with_logprobs_scores_the_prompt_and_what_follows() -> None:
    with double(Script([97, 98, 99])) as server:
        choice = completion(server, echo=True, logprobs=2)
    check_arrays(choice)
    arrays = choice["logprobs"]
    assert choice["text"] == "The sky isabc"
    assert arrays["tokens"] == list("The sky isabc")
    assert arrays["token_logprobs"] == [None, *range(-1, -10, -1), *[-0.125] * 3]
    assert arrays["top_logprobs"][0] is None
    assert arrays["top_logprobs"][10] == {"a": -0.125, "b": pytest.approx(-0.818147)}


def test_zero_alternatives_are_not_none() -> None:
    with double(Script([97, 98, 99])) as server:
        choice = completion(server, logprobs=0)
        assert completion(server)["logprobs"] is None
    check_arrays(choice)
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.125}, {"b": -0.125}, {"c": -0.125}]


def test_an_echo_without_generation_tells_the_prompt_alone() -> None:
    with double(Script([97, 98, 99])) as server:
        body = {"prompt": "The sky", "echo": True, "logprobs": 0, "max_tokens": 0}
        answer = server.post(COMPLETIONS, body).json()
        choice = answer["choices"][0]
        assert completion(server, echo=True, max_tokens=0)["text"] == "The sky is"
        refused = check_error(server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 0}))
    check_arrays(choice)
    assert choice["text"] == "The sky"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert refused["param"] == "max_tokens"


def test_every_choice_and_prompt_has_its_own_prompt_s_scores() -> None:
    body = {"prompt": ["ab", "cde"], "n": 2, "echo": True, "logprobs": 0, "max_tokens": 1}
    with double(Script([120])) as server:
        choices = server.post(COMPLETIONS, body).json()["choices"]
        chunks = read_stream(server, COMPLETIONS, body)
        for choice in choices:
            check_arrays(choice)
            assert joined(chunks, choice["index"])["logprobs"] == choice["logprobs"]
    assert [choice["text"] for choice in choices] == ["abx", "abx", "cdex", "cdex"]


def test_chat_tells_bytes_and_alternatives() -> None:
    with double(Script([97, 98])) as server:
        body = {"messages": MESSAGES, "max_tokens": 2, "logprobs": True}
        plain = server.post(CHAT, body).json()["choices"][0]["logprobs"]
        answer = server.post(CHAT, {**body, "top_logprobs": 2}).json()["choices"][0]["logprobs"]
        chunks = read_stream(server, CHAT, {**body, "top_logprobs": 2})
        assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}).json()["choices"][0]["logprobs"] is None
        refused = check_error(server.post(CHAT, {"messages": MESSAGES, "top_logprobs": 2}))
    a = {"token": "a", "logprob": -0.125, "bytes": [97]}
    b = {"token": "b", "logprob": -0.125, "bytes": [98]}
    assert plain == {"content": [{**a, "top_logprobs": []}, {**b, "top_logprobs": []}], "refusal": None}
    below = {"token": "b", "logprob": pytest.approx(-0.818147), "bytes": [98]}
    assert answer["content"][0] == {**a, "top_logprobs": [a, below]}
    assert joined(chunks)["logprobs"]["content"] == answer["content"]
    assert refused["param"] == "top_logprobs"


LLAMA = "\N{LLAMA}"
HALVES = [b"\xf0\x9f", b"\xa6\x99"]


def test_tokens_within_a_character_have_its_place() -> None:
    script = Script([65, FIRST_PIECE, FIRST_PIECE + 1, 33])
    with double(script, HALVES) as server:
        choice = completion(server, logprobs=0, max_tokens=4)
        chat = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 4, "logprobs": True}).json()
    assert choice["text"] == f"A{LLAMA}!"
    assert choice["logprobs"]["tokens"] == ["A", "bytes:\\xf0\\x9f", "bytes:\\xa6\\x99", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    entries = chat["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[65], [0xF0, 0x9F], [0xA6, 0x99], [33]]


@pytest.mark.parametrize("per_step", [1, 2, 5])
def test_what_a_stop_string_takes_away_is_not_told(per_step: int) -> None:
    pieces = [b"Al", b"pha ", b"OB", b"SER", b"VE: x"]
    script = Script([FIRST_PIECE + i for i in range(5)], per_step=per_step)
    with double(script, pieces) as server:
        choice = completion(server, logprobs=0, max_tokens=5, stop=["OBSERVE:"])
        kept = completion(server, logprobs=0, max_tokens=5, stop=["OBSERVE:"], include_stop_str_in_output=True)
        near = completion(server, logprobs=0, max_tokens=5, stop=["OBSERVES"])
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("Alpha ", ["Al", "pha "])
    assert kept["logprobs"]["tokens"] == ["Al", "pha ", "OB", "SER", "VE: x"]
    assert near["logprobs"]["text_offset"] == [0, 2, 6, 8, 11]
    check_arrays(near)


def test_the_token_that_ends_a_text_is_told_with_no_text() -> None:
    """One entry for each token generated: whoever scores a text takes the last one away."""
    with double(Script([97, EOS, 98])) as server:
        choice = completion(server, logprobs=0, max_tokens=3)
    assert choice["text"] == "a"
    assert choice["logprobs"]["tokens"] == ["a", "<|endoftext|>"]
    assert choice["logprobs"]["text_offset"] == [0, 1]


def test_prompt_logprobs_are_told_by_id() -> None:
    with double(Script([97])) as server:
        body = {"prompt": "ab", "max_tokens": 1, "prompt_logprobs": 1}
        choice = server.post(COMPLETIONS, body).json()["choices"][0]
        chat = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 0}).json()
        refused = check_error(server.post(COMPLETIONS, {**body, "stream": True}))
    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"}}]
    assert choice["logprobs"] is None
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert refused["param"] == "prompt_logprobs"


def test_the_best_of_several_is_answered() -> None:
    with double(Script([97, 98], better_choices=True)) as server:
        body = {"prompt": "p", "max_tokens": 2, "n": 2, "best_of": 4, "logprobs": 0}
        answer = server.post(COMPLETIONS, body).json()
        silent = server.post(COMPLETIONS, {**body, "logprobs": None}).json()
        streamed = check_error(server.post(COMPLETIONS, {**body, "stream": True}))
        below = check_error(server.post(COMPLETIONS, {**body, "best_of": 1}))
    best = [choice["logprobs"]["token_logprobs"][0] for choice in answer["choices"]]
    assert best == [2.875, 1.875]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 8
    assert [choice["logprobs"] for choice in silent["choices"]] == [None, None]
    assert streamed["param"] == below["param"] == "best_of"


@pytest.mark.parametrize("prompt", ["ab", ["ab", "cd"], [97, 98], [[97, 98], [99]]])
@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"prompt_logprobs": 1}, {"max_tokens": 0}])
def test_the_best_of_several_is_answered_behind_its_prompt(prompt: Any, fields: dict[str, Any]) -> None:
    """Whether or not scores are told, which choosing needs."""
    with double(Script([120, 121], better_choices=True)) as server:
        body = {"prompt": prompt, "max_tokens": 2, "best_of": 2, "echo": True, **fields}
        answer = server.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    ids = prompt if isinstance(prompt, list) else [prompt]
    texts = [text if isinstance(text, str) else bytes(text).decode() for text in ([ids] if ids == [97, 98] else ids)]
    generated = "xy" if body["max_tokens"] else ""
    assert [choice["text"] for choice in choices] == [text + generated for text in texts]
    for choice in choices:
        assert (choice["logprobs"] is None) == ("logprobs" not in fields)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"prompt_logprobs": 1}, {"logprobs": 1, "max_tokens": 0}])
def test_a_failure_before_the_prompt_is_scored_is_told_as_what_it_is(fields: dict[str, Any]) -> None:
    body = {"prompt": "ab", "max_tokens": 2, "echo": True, **fields}
    with double(Script([97, 98], fail_after=0)) as server:
        error = check_error(server.post(COMPLETIONS, body), 500)
        if "prompt_logprobs" not in fields:
            *_, last = read_stream(server, COMPLETIONS, body)
            assert last["error"]["code"] == "engine_error"
    assert (error["code"], "not finite" in error["message"]) == ("engine_error", True)


def test_the_model_s_own_numbers(server: Server) -> None:
    """Scoring a text through the API gives what generating it told."""
    body = {"prompt": "once upon", "max_tokens": 12, "temperature": 0, "logprobs": 3}
    told = server.post(COMPLETIONS, body).json()["choices"][0]
    arrays = told["logprobs"]
    assert all(
        max(top.values()) == top[token] for top, token in zip(arrays["top_logprobs"], arrays["tokens"], strict=True)
    )
    ids = server.post(contract.PATH_TOKENIZE, {"prompt": "once upon"}).json()["tokens"]
    ids += [ord(token) if len(token) == 1 else int(token[-2:], 16) for token in arrays["tokens"]]
    again = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 3}
    scored = server.post(COMPLETIONS, again).json()["choices"][0]["logprobs"]
    assert scored["token_logprobs"][-12:] == arrays["token_logprobs"]
    assert scored["top_logprobs"][-12:] == arrays["top_logprobs"]
    json.dumps(scored, allow_nan=False)


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    """Both processes must agree on how many there are."""
    model = text_model(())
    limits = Limits(("double",), 64, 12, 64)
    body = b'{"prompt": [1, 2], "max_tokens": 1, "logprobs": 20, "prompt_logprobs": 20}'
    prepared = prepare(Job("completions", body, limits), model)
    assert isinstance(prepared, Prepared)
    assert (prepared.sampling.logprobs, prepared.prompt_alternatives) == (12, 12)
