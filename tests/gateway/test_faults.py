"""The list of router faults names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .faults import TESTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", TESTS)
def test_every_fault_names_tests_that_exist(fault: str) -> None:
    for name in TESTS[fault][1]:
        file, _, start = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert any(function.startswith(start) for function in functions), name
