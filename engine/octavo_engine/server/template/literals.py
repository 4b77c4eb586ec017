"""What a template's own text is, read from its syntax tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jinja2 import nodes

_PASSES_VALUES = frozenset({"d", "default", "join"})
"""Filters whose arguments become part of what is written."""


def rewrite_written_text(tree: nodes.Template, rewrite: Callable[[str], str]) -> None:
    """Apply `rewrite` to every text the template may write; texts it only compares or searches with stay."""
    for data in tree.find_all(nodes.TemplateData):
        data.data = rewrite(data.data)
    for output in tree.find_all(nodes.Output):
        _rewrite_all(output.nodes, rewrite)
    for assigned in tree.find_all(nodes.Assign):
        _rewrite(assigned.node, rewrite)
    for macro in tree.find_all(nodes.Macro):
        _rewrite_all(macro.defaults, rewrite)


def iterates_parts(tree: nodes.Template) -> bool:
    """Return whether the template loops over a message's content: it reads lists of parts itself."""
    names = {
        assigned.target.name
        for assigned in tree.find_all(nodes.Assign)
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node)
    }
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        while isinstance(over, nodes.Filter) and over.node is not None:
            over = over.node
        if _is_content(over) or (isinstance(over, nodes.Name) and over.name in names | {"content"}):
            return True
    return False


def concatenates_arguments(tree: nodes.Template) -> bool:
    """Return whether the template joins a call's arguments to other text: it takes them to be text, not an object."""
    joined = [side for add in tree.find_all(nodes.Add) for side in (add.left, add.right)]
    joined += [item for concat in tree.find_all(nodes.Concat) for item in concat.nodes]
    return any(_is_member(node, "arguments") for node in joined)


def _is_content(node: nodes.Node) -> bool:
    return _is_member(node, "content")


def _is_member(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == name
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == name


def _rewrite_all(expressions: Iterable[nodes.Node], rewrite: Callable[[str], str]) -> None:
    for expression in expressions:
        _rewrite(expression, rewrite)


def _rewrite(node: nodes.Node | None, rewrite: Callable[[str], str]) -> None:
    """Descend to the texts whose value is the expression's value, or a part of it."""
    match node:
        case nodes.Const(value=str(text)):
            node.value = rewrite(text)
        case nodes.Add() | nodes.Or() | nodes.And():
            _rewrite_all((node.left, node.right), rewrite)
        case nodes.Concat():
            _rewrite_all(node.nodes, rewrite)
        case nodes.CondExpr():
            _rewrite(node.expr1, rewrite)
            _rewrite(node.expr2, rewrite)
        case nodes.Filter():
            _rewrite(node.node, rewrite)
            if node.name in _PASSES_VALUES:
                _rewrite_all(node.args, rewrite)
        case nodes.Call(node=nodes.Name()):  # a macro or `namespace`; a method's arguments are what it looks for
            _rewrite_all(node.args, rewrite)
            _rewrite_all((keyword.value for keyword in node.kwargs), rewrite)
        case nodes.List() | nodes.Tuple():
            _rewrite_all(node.items, rewrite)
        case nodes.Dict():
            _rewrite_all((pair.value for pair in node.items), rewrite)
        case nodes.Getitem():
            _rewrite(node.node, rewrite)
        case _:
            pass
