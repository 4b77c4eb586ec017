"""What a text must be like: how the fields say it, what is refused, and what checking it may cost (B19)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil
import pytest

from octavo_engine.ipc.grammar_limits import one_sentence
from octavo_engine.server.errors import ApiError
from octavo_engine.server.grammar_check import REMEMBERED, Allowance, GrammarChecker, GrammarRefused, compile_here
from octavo_engine.server.jobs import Job, Limits, Prepared, Refusal
from octavo_engine.server.prepare import prepare
from octavo_engine.server.protocol import constraints, tables
from octavo_engine.server.protocol.constraints import Constraint, read_choice, read_grammar, read_regex, read_schema
from octavo_engine.server.protocol.fields import Table, read_fields
from octavo_engine.server.tokenize_pool import Lane
from octavo_engine.server.tokenizer import load_tokenizer
from tests.server.test_tokenize_pool import with_lane

TABLES = [pytest.param(tables.COMPLETIONS, id="completions"), pytest.param(tables.CHAT, id="chat")]
OBJECT = {"type": "object"}
AS_TEXT = '{"type":"object"}'
COSTLY = {"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(10, 30)]}
"""Seconds and hundreds of megabytes: twenty automata whose product must be shown to be empty or not."""
PATIENT = 600
"""Seconds no machine takes, however slow, to reach the one bound a case is about."""


def described(**described: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", **described}}


SAYS: list[tuple[str, Any, Constraint | None]] = [
    ("response_format", {"type": "text"}, None),
    ("response_format", {"type": "json_object"}, constraints.ANY_OBJECT),
    ("response_format", described(schema=OBJECT), Constraint("schema", AS_TEXT, ".json_schema.schema")),
    ("response_format", described(schema=OBJECT, strict=True, description="d"),
     Constraint("schema", AS_TEXT, ".json_schema.schema")),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}},
     Constraint("schema", "{}", ".json_schema.schema")),
    ("structured_outputs", {}, None),
    ("structured_outputs", {"json": None, "disable_any_whitespace": False}, None),
    ("structured_outputs", {"json": OBJECT}, Constraint("schema", AS_TEXT, ".json")),
    ("structured_outputs", {"json": ' {"type": "object"} '}, Constraint("schema", AS_TEXT, ".json")),
    ("structured_outputs", {"json_object": True}, constraints.ANY_OBJECT._replace(path=".json_object")),
    ("structured_outputs", {"regex": "a+"}, Constraint("regex", "a+", ".regex")),
    ("structured_outputs", {"choice": ["a", "é"]}, Constraint("choice", '["a", "é"]', ".choice")),
    ("structured_outputs", {"grammar": "start: /a/"}, Constraint("grammar", "start: /a/", ".grammar")),
    ("guided_json", OBJECT, Constraint("schema", AS_TEXT)),
    ("guided_json", "true", Constraint("schema", "true")),
    ("guided_json", True, Constraint("schema", "true")),
    ("guided_regex", "a", Constraint("regex", "a")),
    ("guided_choice", ["a"], Constraint("choice", '["a"]')),
    ("guided_grammar", "root ::= [a]", Constraint("grammar", "root ::= [a]")),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("name", "value", "meaning"), SAYS)
def test_what_the_fields_say(table: Table, name: str, value: Any, meaning: Constraint | None) -> None:
    assert read_fields(table, {name: value})[name] == meaning


LARGE = "a" * (constraints.MAX_GRAMMAR_BYTES + 1)
UNREADABLE: list[tuple[str, Any, str]] = [
    ("response_format", "json", ""),
    ("response_format", {}, ".type"),
    ("response_format", {"type": "xml"}, ".type"),
    ("response_format", {"type": ["text"]}, ".type"),
    ("response_format", {"type": "json_schema"}, ".json_schema"),
    ("response_format", {"type": "json_schema", "json_schema": "x"}, ".json_schema"),
    ("response_format", described(), ".json_schema.schema"),
    ("response_format", described(schema=None), ".json_schema.schema"),
    ("response_format", described(schema=[OBJECT]), ".json_schema.schema"),
    ("response_format", described(schema=7), ".json_schema.schema"),
    ("response_format", described(schema={"const": LARGE}), ".json_schema.schema"),
    ("response_format", described(schema=OBJECT, strict=1), ".json_schema.strict"),
    ("response_format", described(schema=OBJECT, name=""), ".json_schema.name"),
    ("response_format", described(schema=OBJECT, name="a" * 65), ".json_schema.name"),
    ("response_format", described(schema=OBJECT, description=7), ".json_schema.description"),
    ("structured_outputs", [], ""),
    ("structured_outputs", {"json": OBJECT, "regex": "a"}, ""),
    ("structured_outputs", {"structural_tag": "x"}, ".structural_tag"),
    ("structured_outputs", {"json": OBJECT, "whitespace_pattern": " "}, ".whitespace_pattern"),
    ("structured_outputs", {"json_object": 1}, ".json_object"),
    ("structured_outputs", {"regex": 7}, ".regex"),
    ("guided_json", "{", ""),
    ("guided_json", "[1]", ""),
    ("guided_json", '{"a": 1, "a": 2}', ""),
    ("guided_json", '{"maximum": NaN}', ""),
    ("guided_json", "[" * 70 + "]" * 70, ""),
    ("guided_json", LARGE, ""),
    ("guided_regex", "", ""),
    ("guided_regex", ["a"], ""),
    ("guided_regex", LARGE, ""),
    ("guided_choice", [], ""),
    ("guided_choice", "a", ""),
    ("guided_choice", ["a", 1], ""),
    ("guided_choice", [LARGE], ""),
    ("guided_grammar", "", ""),
    ("guided_grammar", LARGE, ""),
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("name", "value", "path"), UNREADABLE)
def test_what_cannot_be_read_is_refused_where_it_stands(table: Table, name: str, value: Any, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_fields(table, {name: value})
    assert (refused.value.status, refused.value.param) == (400, name + path)


# --- Compiling --------------------------------------------------------------------------------------------------
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
}
GOOD: list[Constraint] = [
    read_schema({}),
    read_schema(True),
    read_schema(OBJECT),
    read_schema(TREE),
    read_schema({"type": "integer", "maximum": 20000000000}),
    read_schema({"type": "string", "pattern": "^(a+)+$"}),
    read_schema({"type": "string", "format": "date-time"}),
    read_schema({"type": "object", "patternProperties": {"^a": {"type": "string"}}}),
    read_schema({"enum": ["a", 1, None, {"b": []}]}),
    read_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}}),
    read_regex("(a+)+$"),
    read_regex("^a/b\\d{3}$"),
    read_regex("(?:(?:a|b){1000}c){1000}"),
    read_regex("é+|🙂"),
    read_choice(["", "a\n", '"\\/', "\x00", "é🙂"]),
    read_grammar('start: "a" b*\nb: /[x-z]+/'),
    read_grammar('root ::= "(" root ")" | [0-9]+'),
]


@pytest.mark.parametrize("constraint", GOOD, ids=lambda constraint: f"{constraint.kind} {constraint.text[:40]}")
def test_what_can_be_compiled(constraint: Constraint) -> None:
    grammar, fault = compile_here(constraint)
    assert not fault
    assert json.loads(grammar)["grammars"]


BAD: list[tuple[Constraint, str]] = [
    (read_schema(False), "false"),
    (read_schema({"type": "banana"}), "banana"),
    (read_schema({"properties": {"foo": "bar"}}), "must be an object"),
    (read_schema({"$ref": "#"}), "no text"),
    (read_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "no text"),
    (read_schema({"$ref": "#/nowhere"}), "nowhere"),
    (read_schema({"$ref": "http://example.org/schema"}), "example.org"),
    (read_schema({"if": {}, "then": {}}), "if"),
    (read_schema({"not": {"type": "string"}}), "not"),
    (read_schema({"not": {}, "x-guidance": {"lenient": True}}), "not"),
    (read_schema({"type": "string", "format": "banana"}), "banana"),
    (read_schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "incompatible"),
    (read_regex("^a[$"), "unclosed character class"),
    (read_regex("a(?=b)"), "look-ahead"),
    (read_regex("(" * 3000 + ")" * 3000), "regex"),
    (read_grammar("nonsense"), "neither Lark nor GBNF"),
    (read_grammar('{"grammars": []}'), "neither Lark nor GBNF"),
    (read_grammar("start: start"), "no text"),
    (read_grammar("start: nobody"), "nobody"),
    (read_grammar("start: <[300]>"), "300"),
    (read_grammar("start: <|im_end|>"), "im_end"),
    (read_grammar("start: " + "(" * 30000 + '"a"' + ")" * 30000), "nested"),
]


@pytest.mark.parametrize(("constraint", "why"), BAD, ids=lambda value: str(value)[:60])
def test_what_cannot_be_compiled_is_refused_with_the_reason(constraint: Constraint, why: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        GrammarChecker().check(constraint)
    sentence = str(refused.value)
    assert why in sentence
    assert "\n" not in sentence
    assert len(sentence) < 400


def test_a_message_is_one_sentence_of_bounded_length() -> None:
    assert one_sentence("lexer error: too many\n<non-verbose/>") == "lexer error: too many"
    assert len(one_sentence("x" * 10_000)) <= 301
    assert one_sentence('at 1(8): invalid regex "a[" (in regex): parse:\n  a[\n  ^\nerror: unclosed\n 1 | start') == (
        "at 1(8): invalid regex: unclosed"
    )


@pytest.mark.parametrize(
    ("allowance", "why"),
    [
        (Allowance(PATIENT, PATIENT, memory_bytes=64 << 20), "memory"),
        (Allowance(1, PATIENT, memory_bytes=1 << 40), "too long"),
        (Allowance(PATIENT, 0.2, memory_bytes=1 << 40), "too long"),
    ],
)
def test_what_costs_too_much_is_broken_off(allowance: Allowance, why: str) -> None:
    # In a new process, as where it serves: what this one has freed would be used before any more is asked for.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as new_process:
        said, children = new_process.submit(told_of_the_costly, allowance).result()
    assert why in said
    assert children == 0


def told_of_the_costly(allowance: Allowance) -> tuple[str, int]:
    """Return what is said of `COSTLY`, and how many processes were left by it and by one that costs nothing after."""
    with pytest.raises(GrammarRefused) as refused:
        GrammarChecker(allowance).check(read_schema(COSTLY))
    assert GrammarChecker().check(read_regex("a+")), "the next one is not its victim"
    return str(refused.value), len(psutil.Process().children())


def test_only_the_last_that_were_accepted_are_remembered() -> None:
    checker = GrammarChecker()
    for count in range(REMEMBERED + 10):
        checker.check(read_regex(f"a{{{count + 1}}}"))
    assert len(checker._accepted) == REMEMBERED


# --- Whole requests ---------------------------------------------------------------------------------------------
LIMITS = Limits(("m",), 1024, 259, 10**6)


def prepared(**fields: Any) -> Any:
    body = json.dumps({"prompt": "hello", **fields}).encode()
    return prepare(Job("completions", body, LIMITS), load_tokenizer("scripted://"))


def test_a_request_without_a_constraint_has_no_grammar() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}):
        assert prepared(**fields).sampling.grammar == ""


def test_the_grammar_goes_to_the_engine_with_the_sampling_parameters() -> None:
    result = prepared(guided_regex="ab+c")
    assert isinstance(result, Prepared)
    assert "ab+c" in result.sampling.grammar


def test_two_constraints_are_one_too_many() -> None:
    result = prepared(guided_regex="a", response_format={"type": "json_object"})
    assert isinstance(result, Refusal)
    assert (result.status, result.param) == (400, "guided_regex")
    assert isinstance(prepared(guided_regex="a", response_format={"type": "text"}), Prepared)


def test_the_refusal_names_the_place_and_says_why() -> None:
    result = prepared(response_format=described(schema={"type": "banana"}))
    assert isinstance(result, Refusal)
    assert (result.status, result.param) == (400, "response_format.json_schema.schema")
    assert re.fullmatch(r"'response_format\.json_schema\.schema' cannot be compiled: .*banana.*\.", result.message)


def test_a_tokenising_process_outlives_what_costs_too_much() -> None:
    async def use(lane: Lane) -> None:
        pid = lane.pid
        body = json.dumps({"prompt": "p", "guided_json": COSTLY}).encode()
        refused, fine = await asyncio.gather(
            lane.run(Job("completions", body, LIMITS)),
            lane.run(Job("completions", b'{"prompt": "p"}', LIMITS)),
            return_exceptions=True,
        )
        assert isinstance(refused, ApiError)
        assert (refused.status, refused.param) == (400, "guided_json")
        assert isinstance(fine, Prepared)
        assert lane.pid == pid

    with_lane(use)
