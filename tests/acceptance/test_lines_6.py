"""The lines of the GPU engine that need none are taken in their short form; what the trace becomes is what it says."""

import json

from tests.acceptance.host_tier import read_mooncake
from tests.acceptance.lines_6 import LINES, Settings


def test_the_short_form_changes_no_output():
    figures = list(LINES[6](Settings(short=True)))
    assert [figure.held for figure in figures] == [None, True, None, True]


def test_the_short_form_compiles_a_sample_without_a_spill():
    assert [figure.held for figure in LINES[2](Settings(short=True))] == [True, True]


def test_a_trace_becomes_blocks_of_sixteen_tokens_in_the_order_of_its_requests(tmp_path):
    rows = [
        {"timestamp": 20, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]},
        {"timestamp": 10, "input_length": 600, "output_length": 3, "hash_ids": [7, 5]},
        {"timestamp": 30, "input_length": 1, "output_length": 1, "hash_ids": [1]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_mooncake(path, 2, 131)
    assert (len(first.prompt), first.max_tokens) == (18, 1)
    assert (len(second.prompt), second.max_tokens) == (34, 1)
    assert first.prompt[:16] == second.prompt[:16]
    assert first.prompt[16:] != second.prompt[16:18]
