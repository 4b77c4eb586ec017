"""Curves of attainment and cost, and one against another."""

import math

import pytest

from octavo_operator.simulate.curve import Mark, compare, cost_at, dominated, frontier


def test_beaten_marks_are_left_out():
    marks = [Mark(0.9, 5.0), Mark(0.95, 4.0), Mark(0.99, 8.0), Mark(0.98, 9.0)]
    assert frontier(marks) == [Mark(0.95, 4.0), Mark(0.99, 8.0)]


def test_the_cost_is_linear_between_marks_flat_before_and_infinite_after():
    curve = [Mark(0.95, 4.0), Mark(0.99, 8.0)]
    assert cost_at(curve, 0.90) == 4.0
    assert cost_at(curve, 0.97) == pytest.approx(6.0)
    assert cost_at(curve, 0.99) == 8.0
    assert math.isinf(cost_at(curve, 0.991))
    assert math.isinf(cost_at([], 0.5))


def test_levels_that_only_one_reaches_count():
    ours, theirs = [Mark(0.95, 4.0)], [Mark(0.92, 2.0), Mark(0.99, 8.0)]
    found = compare(ours, "rival", theirs, (0.92, 0.95, 0.99, 0.999))
    assert found.ratios == {0.92: 2.0, 0.95: pytest.approx(4.0 / (2 + 6 * 3 / 7)), 0.99: math.inf}
    assert (found.worst, found.worst_level) == (math.inf, 0.99)
    assert compare(theirs, "us", ours, (0.99,)).ratios == {0.99: 0.0}


def test_domination_needs_one_better_and_none_worse():
    assert dominated(Mark(0.9, 5.0), Mark(0.9, 4.0))
    assert not dominated(Mark(0.9, 5.0), Mark(0.9, 5.0))
    assert not dominated(Mark(0.9, 5.0), Mark(0.95, 6.0))
