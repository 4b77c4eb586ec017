"""Plots are well-formed, say their numbers as text, and stay inside their frame."""

import math
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.bench.plot import WIDTH, Bar, Group, Line, bars, cumulative, lines

SVG = "{http://www.w3.org/2000/svg}"


def parse(text):
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text
    assert root.find(f"{SVG}desc").text
    return root


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


def test_a_distribution_with_failures_ends_below_a_hundred():
    points = cumulative([0.3, 0.1, math.inf, 0.2])
    assert points == [(0.1, 25.0), (0.2, 50.0), (0.3, 75.0), (math.inf, 100.0)]
    root = parse(lines("t", "s", "%", [Line("one", points)]))
    assert len(root.find(f"{SVG}polyline").get("points").split(" ")) == 3
    assert len(cumulative(list(range(5000)))) < 300
