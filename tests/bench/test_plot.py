"""Plots are well-formed, say their numbers as text, and stay inside their frame."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.bench.plot import WIDTH, Bar, Group, Line, bars, cumulative, lines
from octavo_engine.bench.statistics import spread

SVG = "{http://www.w3.org/2000/svg}"


def parse(text):
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text
    assert root.find(f"{SVG}desc").text
    return root


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=5))
def test_bars_fit_and_are_labelled(values):
    root = parse(bars("a < b & c", [Group("g", [Bar(f"bar {i}", value) for i, value in enumerate(values)])], "a note"))
    drawn = [rect for rect in root.iter(f"{SVG}rect") if rect.get("x")]
    assert len(drawn) == len(values)
    ends = [(float(rect.get("width")), float(rect.get("x")) + float(rect.get("width"))) for rect in drawn]
    assert all(width >= 0 and end < WIDTH for width, end in ends)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "a < b & c" in texts
    assert "bar 0" in texts
    assert "a note" in texts


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)) | st.just((math.inf, 1.0)), max_size=20), st.booleans()
)
def test_lines_stay_inside_whatever_the_points(points, log_x):
    root = parse(lines("t", "x", "y", [Line("one", points), Line("none", [])], log_x=log_x))
    for line in root.iter(f"{SVG}polyline"):
        for pair in filter(None, line.get("points").split(" ")):
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= 400


def test_a_spread_has_a_whisker_and_its_range_as_text():
    root = parse(bars("t", [Group("g", [Bar("one", spread([3.0, 1.0, 2.0])), Bar("two", spread([2.0]))])]))
    (whisker,) = [line for line in root.iter(f"{SVG}line") if line.get("class") == "w"]
    one, _ = [rect for rect in root.iter(f"{SVG}rect") if rect.get("x")]
    left, end = float(one.get("x")), float(one.get("x")) + float(one.get("width"))
    assert left < float(whisker.get("x1")) < end < float(whisker.get("x2")) < WIDTH
    assert "2.00 (1.00–3.00)" in [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("value", [math.nan, math.inf, spread([1.0, math.inf]), spread([math.nan, math.nan])])
def test_what_is_not_finite_has_no_bar_and_its_neighbours_do(value):
    text = bars("t", [Group("g", [Bar("one", value), Bar("two", 2.0)])])
    assert 'nan"' not in text
    assert 'inf"' not in text
    last = [rect for rect in parse(text).iter(f"{SVG}rect") if rect.get("x")][-1]
    assert float(last.get("width")) > 100


def test_long_texts_stay_inside():
    words = "a title of many words " * 12
    bar = Bar("a label that is much longer than its place", spread([123456.0, 1234567.0]))
    for text in (bars(words, [Group(words, [bar])], "x" * 300), lines(words, "x", "y", [Line("one", [(1, 1)])], words)):
        root = parse(text)
        height = float(root.get("height"))
        for found in root.iter(f"{SVG}text"):
            room = float(found.get("textLength") or len(found.text) * {"t": 8, "n": 5.5}.get(found.get("class"), 6.5))
            start = {"start": 0, "middle": room / 2, "end": room}[found.get("text-anchor")]
            assert float(found.get("x")) - start >= 0
            assert float(found.get("x")) - start + room <= WIDTH
            assert float(found.get("y")) <= height


def test_a_distribution_with_failures_ends_below_a_hundred():
    points = cumulative([0.3, 0.1, math.nan, math.inf, 0.2])
    assert points == [(0.1, 25.0), (0.2, 50.0), (0.3, 75.0), (math.inf, 100.0)]
    root = parse(lines("t", "s", "%", [Line("one", points)]))
    assert len(next(root.iter(f"{SVG}polyline")).get("points").split(" ")) == 3
    assert len(cumulative(list(range(5000)))) < 300
