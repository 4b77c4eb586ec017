"""Percentiles by nearest rank, and failures that no percentile forgets."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.bench.statistics import goodput, number, percentile, percentiles, spread


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3, 1, 2], 50, 2), ([1, 2, 3, 4], 50, 2), ([1, 2, 3, 4], 75, 3), ([5], 99, 5), (list(range(1, 101)), 99, 99)],
)
def test_a_percentile_is_a_value_that_occurred(values, percent, expected):
    assert percentile(values, percent) == expected


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_at_least_that_share_of_the_values_is_not_above_the_percentile(values, percent):
    found = percentile(values, percent)
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100 + 1e-9


def test_a_failed_request_is_infinite():
    values = percentiles([0.1] * 97 + [math.inf] * 3)
    assert values["p95"] == 0.1
    assert values["p99"] == math.inf
    assert values["mean"] == pytest.approx(0.1)
    assert math.isnan(percentile([], 50))


def test_goodput_needs_both_objectives_and_never_counts_a_failure():
    latencies = [(0.1, 0.01), (0.3, 0.01), (0.1, 0.2), (math.inf, math.inf)]
    assert goodput(latencies, slo_ttft=0.2, slo_itl=0.05) == 0.25
    assert goodput(latencies, slo_ttft=1, slo_itl=1) == 0.75
    assert math.isnan(goodput([], 1, 1))


def test_a_spread_tells_its_range():
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.count) == (2.0, 1.0, 3.0, 3)
    assert found.values == (3.0, 1.0, 2.0)
    assert found.scaled(10) == spread([30.0, 10.0, 20.0])
    assert str(found) == "2.00 (1.00–3.00)"
    assert str(spread([1234.5])) == "1,234"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (99.96, "100"), (45678, "45,678"), (math.inf, "∞")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text
