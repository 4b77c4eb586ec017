"""The drivers run where there is no Octavo: they import none of it, and llama.cpp's turns its bench's line around."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from octavo_engine.bench.peers import driver
from octavo_engine.bench.peers.drivers import with_llamacpp

FOLDER = Path(driver.__file__).parent / "drivers"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_a_driver_imports_nothing_of_ours(path):
    imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name.name for node in imported for name in node.names] + [
        node.module or "" for node in imported if isinstance(node, ast.ImportFrom)
    ]
    assert not any(name.startswith("octavo") for name in names)


@pytest.fixture
def bench(tmp_path):
    """A `llama-batched-bench` that says what it was asked for."""
    binary = tmp_path / "llama-batched-bench"
    line = {"pp": 128, "tg": 16, "pl": 4, "t_pp": 0.5, "t_tg": 1.5, "speed": 1.0}
    binary.write_text(
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], file=sys.stderr)\nprint('main: n_kv_max = 640')\n"
        f"print({json.dumps(json.dumps(line))})\n"
    )
    binary.chmod(0o755)
    return binary


def test_llama_cpp_runs_requests_of_one_length(bench):
    _, run = with_llamacpp.start({"binary": str(bench), "model": "m.gguf", "threads": 2, "versions": {"x": "1"}})
    found = run([{"prompt": [1] * 128, "max_tokens": 16}] * 4)
    assert found == {"seconds": 2.0, "output_tokens": 64, "first_token_seconds": 0.5, "decode_tokens": 64}


def test_llama_cpp_refuses_a_mixed_workload(bench):
    _, run = with_llamacpp.start({"binary": str(bench), "model": "m.gguf", "threads": 2, "versions": {}})
    with pytest.raises(ValueError, match="one length"):
        run([{"prompt": [1], "max_tokens": 2}, {"prompt": [1, 2], "max_tokens": 2}])


def test_a_bench_that_fails_is_told_with_its_last_words(tmp_path):
    binary = tmp_path / "fails"
    binary.write_text("#!/bin/sh\necho 'failed to load model' >&2\nexit 1\n")
    binary.chmod(0o755)
    _, run = with_llamacpp.start({"binary": str(binary), "model": "m.gguf", "threads": 2, "versions": {}})
    with pytest.raises(RuntimeError, match="ended with 1: failed to load model"):
        run([{"prompt": [1], "max_tokens": 2}])
