"""The sandbox chat templates run in: what Hugging Face templates use, bounded in time and size.

Templates come with models, so they are other people's programs. Jinja's sandbox keeps them away from Python; the
budget here keeps an endless loop or a text without end from taking the process (`budget.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_eval_context

from octavo_engine.server.template import budget

_NUMERIC_FILTERS: Final = ("batch", "center", "format", "indent", "slice", "truncate", "wordwrap")
"""Filters whose numbers decide how much they write."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it prints its body."""

    tags: Final = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block into a call of its own body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, context: nodes.EvalContext, caller: Macro) -> str:
        return str(caller())


class TemplateNamespace(Namespace):
    """`namespace()` without underscore attributes, which lead into Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} may not begin with an underscore")
        super().__setitem__(name, value)


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with every operation that can make a text long, and every loop, charged to the budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join a template's output within the budget."""
        return budget.join(pieces)

    @staticmethod
    def tick() -> str:
        """Charge one turn of a loop or one call of a macro."""
        budget.current().tick()
        return ""

    @staticmethod
    def join_values(*values: Any) -> str:
        """Evaluate `a ~ b` within the budget."""
        return budget.join(map(str, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an intercepted operator within the budget."""
        budget.check_operands(operator, left, right)
        return budget.check_result(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, macro or global within the budget."""
        # Jinja's own spelling of the parameters: a template may pass keywords called `self` or `context`.
        budget.current().tick()
        budget.check_method(__obj, args, kwargs)
        return budget.check_result(super().call(__context, __obj, *args, **kwargs))


def make_environment() -> SandboxEnvironment:
    """Return an environment with the globals and filters that `apply_chat_template` gives a template."""
    environment = SandboxEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], cache_size=0
    )
    environment.filters["tojson"] = _tojson
    for name in _NUMERIC_FILTERS:
        environment.filters[name] = _bounded(environment.filters[name])
    environment.filters["join"] = _bounded_join(environment.filters["join"])
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=TemplateNamespace
    )
    environment.globals.pop("lipsum", None)
    return environment


def _raise_exception(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return budget.current().now.strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is: Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget.check_numbers(args, kwargs)
        return budget.check_result(function(*args, **kwargs))

    return _like(function, bounded)


def _bounded_join(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        items = list(value)
        budget.check_joined(items, d)
        return function(context, items, d, attribute)

    return _like(function, bounded)


def _like(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Give `wrapper` the marks by which Jinja decides what to pass first (the context, or nothing)."""
    marks: Mapping[str, Any] = vars(function)
    if "jinja_pass_arg" in marks:
        wrapper.jinja_pass_arg = marks["jinja_pass_arg"]  # type: ignore[attr-defined]
    return wrapper


def bound_loops(tree: nodes.Template) -> None:
    """Make every loop turn, macro call and `~` of a parsed template go through the budget."""
    repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
        *tree.find_all(nodes.CallBlock),
    ]
    for node in repeated:
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno)).set_lineno(node.lineno))
    _replace_concatenations(tree)


def _replace_concatenations(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            _replace_concatenations(value)
            setattr(node, field, _call("join_values", value.nodes, value.lineno))
        elif isinstance(value, nodes.Node):
            _replace_concatenations(value)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if not isinstance(item, nodes.Node):
                    continue
                _replace_concatenations(item)
                if isinstance(item, nodes.Concat):
                    value[place] = _call("join_values", item.nodes, item.lineno)


def _call(attribute: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(attribute), arguments, [], None, None)
    call.set_lineno(line, override=False)
    return call
