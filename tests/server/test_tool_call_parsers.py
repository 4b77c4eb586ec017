"""Tool calls in a model's text (B18): the same for every way of cutting it, told as early as can be, never leaking."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.server.tool_calls.events import Arguments, CallEnded, CallStarted, Event, Text
from octavo_engine.server.tool_calls.formats import SCANNERS, TAGS, Format, format_of
from octavo_engine.server.tool_calls.scanner import Ending

NAMES = ("get_weather", "get_time", "f")
FORMATS: tuple[Format, ...] = get_args(Format)


class Found(NamedTuple):
    """What a whole text turned out to be; calls as (name, arguments, whether it ended)."""

    content: str
    calls: list[tuple[str, str, bool]]
    open: bool


def scan(form: Format, pieces: Sequence[str], ending: Ending = "end", **options: Any) -> Found:
    scanner = SCANNERS[form](NAMES, **options)
    events = [event for piece in pieces for event in scanner.push(piece)]
    return gather([*events, *scanner.finish(ending)], scanner.open)


def gather(events: Sequence[Event], is_open: bool) -> Found:
    """Join events, checking their order: a call begins once, with id and name, and nothing of it follows its end."""
    content, started, ids = "", [], []
    arguments: dict[int, str] = {}
    ended: set[int] = set()
    for event in events:
        if isinstance(event, Text):
            content += event.text
        elif isinstance(event, CallStarted):
            assert event.call == len(started)
            assert event.name
            started.append(event.name)
            ids.append(event.id)
            arguments[event.call] = ""
        elif isinstance(event, Arguments):
            assert event.text
            assert event.call == len(started) - 1
            assert event.call not in ended
            arguments[event.call] += event.text
        else:
            assert isinstance(event, CallEnded)
            ended.add(event.call)
    assert len(set(ids)) == len(ids)
    assert all(identifier.startswith("call_") for identifier in ids)
    return Found(content, [(name, arguments[i], i in ended) for i, name in enumerate(started)], is_open)


def written(form: Format, calls: Sequence[tuple[str, str]]) -> str:
    """Return calls as a model writes them."""
    if form == "hermes":
        return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls)
    if form == "llama3":
        return "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls)
    return "[TOOL_CALLS] [" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls) + "]"


NASTY = r"""} ]</tool_call>" \ <tool_call>{"name": [TOOL_CALLS][ARGS]""" + "\n\t\N{LLAMA}\N{FAMILY}é"
ARGUMENTS = [
    "{}",
    '{"city": "Paris"}',
    json.dumps({"text": NASTY, NASTY: [1, -2.5e3, True, None, {"deep": [[], {}]}]}),
    json.dumps({"text": NASTY}, ensure_ascii=False, indent=2),
    r'{"half": "\ud83e\udd99 \ud83e", "slash": "\/"}',
]
PROSE = {
    "hermes": [
        "a < b, 1 <2, <<tool_cal>, <tool_call/> and </tool_call>",
        "Write <tool_call> before and </tool_call> behind it.",
        '<tool_call>{"nam": 1}</tool_call>',
        '<tool_call>{"name": 7}',
        '<tool_call>{"name": "f" "arguments": {}}',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '{"name": "f", "arguments": {}}',
    ],
    "llama3": [
        '{"name": "Bob", "age": 7}',
        '{"name": "get", "parameters": {}}',
        '{"type": "object", "properties": {"name": {}}}',
        '{"answer": {"name": "f"}}',
        "{}",
        "{ a set }",
        'He said {"name": "f", "parameters": {}}',
        "<|python_ta|> <|python_tag|",
        "a <|python_tag|> b",
    ],
    "mistral": [
        "[TOOL_CALL] [1, 2] [[TOOL_CALLS",
        "[TOOL_CALLS] is the tag.",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS][{"foo": 1}]',
        "[TOOL_CALLS]name then",
        "[TOOL_CALLS]name[ARGS] none",
        '[{"name": "f", "arguments": {}}]',
    ],
}


def cuts(text: str) -> list[list[str]]:
    """Return every way of cutting a text in two, it whole, and its characters."""
    return [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("form", FORMATS)
def test_b18_two_calls_are_the_same_however_the_text_is_cut(form: Format, arguments: str) -> None:
    text = written(form, [("get_weather", arguments), ("f", "{}")])
    expected = Found("", [("get_weather", arguments, True), ("f", "{}", True)], False)
    for pieces in cuts(text):
        assert scan(form, pieces) == expected
    json.loads(expected.calls[0][1])


@pytest.mark.parametrize(("form", "text"), [(form, text) for form in FORMATS for text in PROSE[form]])
def test_b18_what_only_looks_like_a_call_stays_text(form: Format, text: str) -> None:
    for pieces in cuts(text):
        assert scan(form, pieces) == Found(text, [], False)


def test_b18_a_call_right_behind_what_only_looked_like_one_is_found() -> None:
    for pieces in cuts('<tool_call><<tool_call>{"name": "f"}'):
        assert scan("hermes", pieces) == Found("<tool_call><", [("f", "{}", True)], False)


@pytest.mark.parametrize("form", FORMATS)
def test_b18_text_around_calls_is_content(form: Format) -> None:
    call = written(form, [("f", '{"a": 1}')])
    if form == "llama3":
        call = "<|python_tag|>" + call
    for before, after, content in [
        ("Let me see.\n\n", "", "Let me see."),
        ("\n\n", "\n", ""),
        ("One moment ", " please.", "One moment  please."),
        ("", "\nDone.", "Done."),
    ]:
        for pieces in cuts(before + call + after):
            assert scan(form, pieces) == Found(content, [("f", '{"a": 1}', True)], False)
    assert scan(form, ["  plain \n"]) == Found("  plain \n", [], False), "whitespace is lost beside calls only"


OTHER_SHAPES: list[tuple[Format, str, list[tuple[str, str]]]] = [
    ("hermes", '<tool_call>{"name":"f","arguments":{}}<tool_call>{"name":"f"}', [("f", "{}"), ("f", "{}")]),
    ("hermes", '<tool_call>\n{"name":"f"}\n{"name":"f"}\n</tool_call>', [("f", "{}"), ("f", "{}")]),
    ("hermes", '<tool_call>{"arguments": {"a": [1]}, "id": "x", "name": "f"}</tool_call>', [("f", '{"a": [1]}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud83e\\udd99\\"}"}',
     [("f", '{"a": "\N{LLAMA}"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}}</tool_call>', [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', [("f", '{"a": "x\\ny"}')]),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', [("unknown", "{}")]),
    ("llama3", '\n{"type": "function", "name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
    ("llama3", '<|python_tag|>{"name": "unknown", "parameters": {}}', [("unknown", "{}")]),
    ("llama3", '{"name": "f", "parameters": {}}{"name": "get_time", "arguments": {}}',
     [("f", "{}"), ("get_time", "{}")]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "]"}[TOOL_CALLS]get_time[CALL_ID]1a[ARGS]{}',
     [("f", '{"a": "]"}'), ("get_time", "{}")]),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', [("f", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "calls"), OTHER_SHAPES)
def test_shapes_that_models_write_too(form: Format, text: str, calls: list[tuple[str, str]]) -> None:
    for pieces in cuts(text):
        assert scan(form, pieces) == Found("", [(name, arguments, True) for name, arguments in calls], False)


def test_a_call_that_breaks_ends_at_its_closing_tag() -> None:
    text = '<tool_call>{"name": "f", "arguments": {\'a\': 1}}\n</tool_call> so'
    for pieces in cuts(text):
        assert scan("hermes", pieces) == Found("so", [("f", "{'a': 1}}\n", True)], False)
    after = '<tool_call>{"name": "f", "arguments": {"a": 1} oops</tool_call>'
    for pieces in cuts(after):
        assert scan("hermes", pieces) == Found("", [("f", '{"a": 1}', True)], False)
    for pieces in cuts('[TOOL_CALLS]f[ARGS]{"a": oops}'):
        assert scan("mistral", pieces) == Found("", [("f", '{"a": oops}', False)], True)


@pytest.mark.parametrize("form", FORMATS)
def test_b18_a_text_cut_anywhere_leaks_no_markup(form: Format) -> None:
    arguments = json.dumps({"text": NASTY})
    text = "Well: " * (form != "llama3") + written(form, [("f", arguments), ("get_time", "{}")])
    for end in range(len(text) + 1):
        found = scan(form, [text[:end]], "length")
        assert found == scan(form, list(text[:end]), "length")
        assert "Well: ".startswith(found.content)
        for (name, told, ended), (expected, whole) in zip(
            found.calls, [("f", arguments), ("get_time", "{}")], strict=False
        ):
            assert name == expected
            assert whole.startswith(told)
            assert (told == whole) if ended else found.open


def test_a_stop_string_keeps_text_that_is_no_tag_yet() -> None:
    assert scan("hermes", ["a <"], "stop_string").content == "a <"
    assert scan("hermes", ['a <tool_call>{"na'], "stop_string").content == "a "
    assert scan("hermes", ['a <tool_call>{"na'], "end").content == 'a <tool_call>{"na', "the model's own end"


@pytest.mark.parametrize("ending", get_args(Ending))
def test_what_only_follows_a_call_is_no_content(ending: Ending) -> None:
    for form, text in (("llama3", '{"name": "f"}; '), ("hermes", '<tool_call>{"name": "f"}\n</tool_c')):
        for pieces in cuts(text):
            assert scan(form, pieces, ending) == Found("", [("f", "{}", True)], False)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMATS)
def test_arguments_are_told_with_their_own_character(form: Format) -> None:
    arguments = json.dumps({"text": 'some "text"', "list": [1, {"a": 2}]})
    text = written(form, [("f", arguments)])
    scanner = SCANNERS[form](NAMES)
    told = ""
    for place, character in enumerate(text):
        for event in scanner.push(character):
            told += event.text if isinstance(event, Arguments) else ""
        begin = text.index(arguments)
        assert told == arguments[: max(0, place + 1 - begin)]


def test_plain_text_is_told_with_its_own_character() -> None:
    for form in FORMATS:
        scanner = SCANNERS[form](NAMES)
        assert [scanner.push(character) for character in "Well"] == [[Text(character)] for character in "Well"]
    scanner = SCANNERS["llama3"](NAMES)
    assert scanner.push('{"name": "Bo') == [Text('{"name": "Bo')], "no function begins like that"


@pytest.mark.parametrize("form", FORMATS)
def test_without_parallel_calls_the_first_is_kept(form: Format) -> None:
    text = written(form, [("f", '{"a": 1}'), ("get_time", "{}")])
    assert scan(form, [text], parallel=False) == Found("", [("f", '{"a": 1}', True)], False)


def test_special_tokens_that_mark_no_call_are_no_content() -> None:
    assert scan("llama3", ["<|python_tag|>print(1)"], hidden=TAGS["llama3"]).content == "print(1)"
    assert scan("mistral", ["[TOOL_CALLS] so"], hidden=TAGS["mistral"]).content == " so"


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", '{"name": "f"', ', "arguments": ',
     '"parameters": ', "{", "}", "[", "]", ",", ";", ":", '"', "\\", "\\u", "d83e", "null", "1", " ", "\n", "\N{LLAMA}",
     "get_time", "f", '{"name": "f", "arguments": {"a": "b"}}']
)  # fmt: skip


@given(st.sampled_from(FORMATS), st.lists(FRAGMENTS, max_size=24), st.data())
def test_b18_any_text_is_the_same_for_any_cut(form: Format, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    ending: Ending = data.draw(st.sampled_from(get_args(Ending)))
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]
    whole = scan(form, [text], ending)
    assert scan(form, pieces, ending) == whole
    assert scan(form, list(text), ending) == whole
    if not whole.calls and ending == "end":
        assert whole.content == text, "nothing is lost of a text without calls"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)


@given(
    st.sampled_from(FORMATS), st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS), min_size=1, max_size=3), st.data()
)
def test_b18_calls_come_through_whole(
    form: Format, calls: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 2]))
    texts = [(name, json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)) for name, arguments in calls]
    text = written(form, texts)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]
    found = scan(form, pieces)
    assert found == Found("", [(name, arguments, True) for name, arguments in texts], False)
    assert [json.loads(arguments) for _, arguments, _ in found.calls] == [arguments for _, arguments in calls]


SAYS = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (SAYS + '<tool_call>{"name": n, "arguments": a}</tool_call>', "hermes"),
        (SAYS + "<tool_call>\n<function=name>", None),
        (SAYS + '<tool_call>name<arg_key>k</arg_key> "arguments"', None),
        (SAYS + '<|start_header_id|>{"name": n, "parameters": p}', "llama3"),
        (SAYS + '{"name": n, "parameters": p}<|python_tag|>', "llama3"),
        (SAYS + "[TOOL_CALLS]", "mistral"),
        (SAYS, None),
        ('<tool_call>{"name": n, "arguments": a}</tool_call> tools', None),
        ("{% for tool in tools %}<tool_call> 'arguments'", None),
        (None, None),
    ],
)
def test_the_template_tells_the_format(template: str | None, form: Format | None) -> None:
    assert format_of(template) == form
    assert format_of(template, "none") is None


def test_a_format_can_be_given_to_a_model_that_is_told_of_tools() -> None:
    assert format_of(SAYS, "hermes") == "hermes"
    assert format_of("tools", "hermes") is None
