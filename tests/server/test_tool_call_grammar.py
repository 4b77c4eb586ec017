"""The grammar of calls: what it lets through is what our own parser reads, and no other call passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.server.tool_calls.formats import Format
from octavo_engine.server.tool_calls.grammar import calls_grammar
from tests.server.test_tool_call_parsers import Found, scan, written

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
        "additionalProperties": False, "$defs": {"city": {"type": "string"}}}  # fmt: skip
FUNCTIONS = [
    {"name": "get_weather", "parameters": CITY},
    {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
]
CALLS = [("get_weather", '{"city": "Paris }\\" "}'), ("get_time", "{}")]
SPECIAL = {"[TOOL_CALLS]": 257, "[ARGS]": 258}


class Bytes:
    """A tokenizer of bytes, with an end and two special tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256, 257, 258)

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"", b"\xff[TOOL_CALLS]", b"\xff[ARGS]"]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


TOKENIZER = LLTokenizer(Bytes())


def tokens(text: str, special: Mapping[str, int]) -> list[int]:
    """Return a text's ids, special tokens by their names."""
    for tag, token in special.items():
        head, found, tail = text.partition(tag)
        if found:
            return [*tokens(head, special), token, *tokens(tail, special)]
    return list(text.encode())


def passes(grammar: str, text: str, special: Mapping[str, int] | None = None) -> bool:
    matcher = LLMatcher(TOKENIZER, '%llguidance {"no_forcing": true}\n' + grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = [*tokens(text, special or {}), Bytes.eos_token_id]
    return bool(matcher.validate_tokens(ids) == len(ids))


def text_of(form: Format, calls: list[tuple[str, str]]) -> str:
    return written(form, calls).replace("[TOOL_CALLS] [", "[TOOL_CALLS][")


@pytest.mark.parametrize("form", get_args(Format))
def test_what_passes_is_what_the_parser_reads(form: Format) -> None:
    grammar = calls_grammar(form, FUNCTIONS)
    for calls in ([CALLS[0]], [CALLS[1]], CALLS):
        text = text_of(form, calls)
        assert passes(grammar, text)
        assert scan(form, [text]) == Found("", [(name, arguments, True) for name, arguments in calls], False)
    for text in (
        "",
        "Well. " + text_of(form, CALLS),
        text_of(form, CALLS) + " Done.",
        text_of(form, [("get_weather", "{}")]),
        text_of(form, [("other", "{}")]),
        text_of(form, CALLS)[:-1],
    ):
        assert not passes(grammar, text)


@pytest.mark.parametrize("form", get_args(Format))
def test_one_call_of_one_function(form: Format) -> None:
    named = calls_grammar(form, FUNCTIONS[1:], parallel=False, options={"whitespace_flexible": False})
    assert passes(named, text_of(form, [CALLS[1]]))
    assert not passes(named, text_of(form, [CALLS[0]]))
    assert not passes(named, text_of(form, [CALLS[1], CALLS[1]]))
    assert not passes(named, text_of(form, [("get_time", "{ }")])), "the schema's options hold"


@pytest.mark.parametrize("form", get_args(Format))
def test_calls_that_need_not_be_made_are_held_to_their_schemas_too(form: Format) -> None:
    grammar = calls_grammar(form, FUNCTIONS, required=False)
    for text in ("", "Well.\n", "a < b [c] {d}", text_of(form, CALLS), " [TOOL_CALL] <tool_"):
        assert passes(grammar, text), text
    for calls in ([("get_weather", "{}")], [("other", "{}")]):
        assert not passes(grammar, text_of(form, calls))
    if form != "llama3":
        assert passes(grammar, "Well. " + text_of(form, CALLS) + " Done.")
    else:
        assert not passes(grammar, ' \n{"name": "get_weather", "parameters": {}}')
        assert passes(grammar, 'Say {"name": 1}')
    single = calls_grammar(form, FUNCTIONS, required=False, parallel=False)
    assert passes(single, text_of(form, [CALLS[1]]))


def test_free_text_and_tags_that_are_special_tokens() -> None:
    newer = calls_grammar("mistral", FUNCTIONS, required=False, special_ids=SPECIAL)
    text = "Well. " + "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in CALLS)
    for passing in ("", "Well.", text, text + " Done."):
        assert passes(newer, passing, SPECIAL)
    assert not passes(newer, "[TOOL_CALLS]get_weather[ARGS]{}", SPECIAL)
    assert passes(newer, "[TOOL_CALLS]get_weather[ARGS]{}"), "the same characters are text"


def test_tags_that_are_special_tokens() -> None:
    newer = calls_grammar("mistral", FUNCTIONS, special_ids=SPECIAL)
    text = "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in CALLS)
    assert passes(newer, text, SPECIAL)
    assert not passes(newer, text), "the same characters are no tags"
    assert scan("mistral", [text]).calls == [(name, arguments, True) for name, arguments in CALLS]
    older = calls_grammar("mistral", FUNCTIONS, special_ids={"[TOOL_CALLS]": 257})
    assert passes(older, text_of("mistral", CALLS), {"[TOOL_CALLS]": 257})


def test_the_parameters_of_a_function_stay_as_they_are() -> None:
    before: Any = json.dumps(FUNCTIONS)
    calls_grammar("hermes", FUNCTIONS, options={"lenient": False})
    assert json.dumps(FUNCTIONS) == before
