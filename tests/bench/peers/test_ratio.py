"""Rates and the promised ratios, from runs written down by hand."""

from __future__ import annotations

import pytest

from octavo_engine.bench.peers.measure import Measured
from octavo_engine.bench.peers.point import BATCH, DECODE, MIXED, Timing, decode_rate, prefill_rate, total_rate
from octavo_engine.bench.peers.ratio import LINES, Line, ratios
from octavo_engine.bench.peers.schedule import BEST_BATCH, Group
from octavo_engine.bench.peers.tables import compare, tables

RUN = Timing(seconds=2.0, prompt_tokens=128, output_tokens=128, decode_tokens=127, first_token_seconds=0.5)


def test_rates():
    assert total_rate(RUN) == 128
    assert decode_rate(RUN) == pytest.approx(127 / 1.5)
    assert prefill_rate(RUN) == 256


def test_a_rate_that_needs_the_first_token_refuses_a_run_that_does_not_tell_it():
    with pytest.raises(ValueError, match="first token"):
        decode_rate(Timing(1.0, 1, 2, 1))


def test_ratios_pair_the_rounds_and_compare_with_the_best_median():
    line = Line("decode", ("decode", "octavo:file"), (("decode", "slow"), ("decode", "fast"), ("decode", "gone")), 2.0)
    figures = {
        ("decode", "octavo:file"): [100.0, 50.0, 110.0],
        ("decode", "slow"): [10.0, 90.0, 10.0],
        ("decode", "fast"): [50.0, 25.0, 50.0],
    }
    (found,) = ratios(figures, [line])
    assert found.best == "fast"
    # A disturbed round (50 and 25) is a fair pair.
    assert (found.ratio.median, found.ratio.low, found.ratio.high) == (2.0, 2.0, 2.2)
    assert found.kept


def test_a_line_without_one_of_its_sides_is_left_out():
    assert ratios({("mixed", "octavo:file"): [1.0]}) == []
    assert ratios({("mixed", "openvino:file"): [1.0]}) == []


def test_a_promise_is_broken_just_below_its_figure():
    figures = {("mixed", "octavo:file"): [1.99], ("mixed", "openvino:file"): [1.0]}
    assert [ratio.kept for ratio in ratios(figures)] == [False]


def test_every_line_compares_us_with_peers_only():
    for line in LINES:
        assert line.ours[1].startswith("octavo:")
        assert line.peers
        assert not any(name.startswith("octavo:") for _, name in line.peers)


def test_tables_name_formats_perplexities_and_the_best_batch_size():
    best = BATCH._replace(name=BEST_BATCH, title="8 × (128 in, 128 out)")
    entries = (("octavo:file", BATCH), ("llamacpp:file", BATCH), ("llamacpp:file", best))
    measured = Measured(
        figures={
            ("batch", "octavo:file"): [900.0],
            ("batch", "llamacpp:file"): [90.0],
            (BEST_BATCH, "llamacpp:file"): [150.0],
        },
        timings={},
        loads=[2.0, 2.5],
        titles={"octavo:file": "Octavo, file", "llamacpp:file": "llama.cpp, file"},
        best_batch={"llamacpp:file": 8},
        batch_rates={"llamacpp:file": {8: 150.0, 64: 90.0}},
        groups=[Group(BATCH.title, entries)],
    )
    found = compare(measured, {"octavo:file": 10.5})
    assert [(ratio.point, ratio.ratio.median, ratio.kept) for ratio in found.ratios] == [
        ("batch", 10.0, True),
        ("batch", 6.0, True),
    ]
    figures, promised = tables(measured, found)
    assert figures.rows == [
        ("Octavo, file", "900", "10.5"),
        ("llama.cpp, file", "90.0", ""),
        ("llama.cpp, file: 8 × (128 in, 128 out)", "150", ""),
    ]
    assert [row[-1] for row in promised.rows] == ["yes", "yes"]


def test_points_are_those_of_the_lines():
    assert {line.ours[0] for line in LINES} == {MIXED.name, BATCH.name, DECODE.name, "prefill"}
