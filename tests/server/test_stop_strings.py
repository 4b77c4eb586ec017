"""Stop strings: how the text is cut into pieces does not matter (B02)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.server.stop_strings import StopStrings

TEXT = st.text(alphabet="abO", max_size=40)
STOPS = st.lists(st.text(alphabet="abO", min_size=1, max_size=5), max_size=4)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The plain meaning: the first end of any stop string, of equal ends the longest string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(TEXT, STOPS, st.booleans(), st.lists(st.integers(0, 40), max_size=10))
def test_any_split_gives_the_same_text(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    watcher = StopStrings(stops, include)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    sent = "".join(watcher.push(text[start:end]) for start, end in pairwise(edges))
    if watcher.matched is None:
        sent += watcher.finish()
    assert (sent, watcher.matched) == expected(text, stops, include)


@given(TEXT, STOPS)
def test_nothing_that_may_be_a_stop_string_s_head_is_sent(text: str, stops: list[str]) -> None:
    watcher = StopStrings(stops)
    sent = ""
    for character in text:
        sent += watcher.push(character)
    held = text[len(sent) :] if watcher.matched is None else ""
    assert len(held) < max((len(stop) for stop in stops), default=1), "and never more than needed is held"
    assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_after_a_match_is_sent() -> None:
    watcher = StopStrings(["x"])
    assert watcher.push("axb") == "a"
    assert watcher.push("c") == ""
    assert watcher.finish() == ""
