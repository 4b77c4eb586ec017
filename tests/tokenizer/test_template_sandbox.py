"""A template is somebody's program: it stays in its sandbox, and within its time and size."""

from __future__ import annotations

import time

import pytest

from octavo_engine.server.template import ChatTemplate, TemplateError, budget
from octavo_engine.server.tokenizer.control import ControlTokens

CHAT = [{"role": "user", "content": "x" * 1000}]
CONTROL = ControlTokens({"<|user|>": 1})


def render(source: str) -> str:
    return ChatTemplate(source, CONTROL, {"bos_token": "<s>"}).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_an_endless_template_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.Budget.__init__, "__defaults__", (0.2, budget.MAX_CHARACTERS))
    began = time.monotonic()
    with pytest.raises(TemplateError, match="ran longer than"):
        render(source)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('x', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x.join(['a', ns.x]) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}{% endset %}",
        "{{ messages[0].content * 999999999 }}",
        "{{ 999999999 * [messages] }}",
        "{{ messages[0].content.ljust(999999999) }}",
        "{{ messages[0].content | center(999999999) }}",
        "{{ '%0999999999d' % 5 }}",
        "{{ '{:>999999999}'.format(5) }}",
        "{{ '{:>{}}'.format(5, 999999999) }}",
        "{{ '%*d' | format(999999999, 5) }}",
        "{{ 9 ** 999999999 }}",
        "{{ 'x' | indent(999999999, true) }}",
    ],
)
def test_a_template_without_end_or_measure_is_stopped(source: str) -> None:
    began = time.monotonic()
    with pytest.raises(TemplateError, match=r"stopped|cannot be used"):
        render(source)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ messages[0].content.__class__.__mro__ }}", "__class__"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ namespace(x=1).__init__.__globals__ }}", "__init__"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ 'a' + 5 }}", "str"),
        ("{{ 1 / 0 }}", "zero"),
        ("{{ undefined_function() }}", "undefined_function"),
        ("{% include 'other' %}", "loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ lipsum(n=100000) }}", "lipsum"),
    ],
)
def test_a_failing_template_is_refused_with_its_own_message(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% break %}", "{% endif %}", "{{ x | no_such_filter }}"])
def test_a_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="cannot be used"):
        render(source)


def test_a_template_cannot_reach_the_objects_it_is_given() -> None:
    chat = [{"role": "user", "content": "a"}]
    ChatTemplate("{{ messages[0].update({'content': 'b'}) if false else 'x' }}", CONTROL, {}).render(chat)
    assert chat == [{"role": "user", "content": "a"}]


def test_both_renderings_see_the_same_moment() -> None:
    source = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}<|user|>"
    assert CONTROL.count(render(source)) == 1


def test_large_conversations_fit() -> None:
    chat = [{"role": "user", "content": "word " * 2000} for _ in range(500)]
    source = "{% for m in messages %}{{ '<|user|>' + m.content | trim ~ '\\n' }}{% endfor %}"
    template = ChatTemplate(source, CONTROL, {})
    assert CONTROL.count(template.render(chat)) == 500
