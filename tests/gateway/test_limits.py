"""Limits per tenant: never more in any minute than allowed, together no more than the whole, and places come back."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.gateway.limits import Expectation, Limiter, Limits, Window
from octavo_operator.gateway.refusal import Refusal


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 100),
)
def test_no_minute_holds_more_than_the_limit(steps: list[tuple[float, int]], limit: int) -> None:
    window, now = Window(), 1000.0
    taken: list[tuple[float, int]] = []
    for passed, wish in steps:
        now += passed
        amount = min(wish, limit)
        wait = window.room_in(amount, limit, now)
        if not wait:
            window.add(amount, now)
            taken.append((now, amount))
        else:
            assert 0 < wait <= 61
            assert deepcopy(window).room_in(amount, limit, now + wait) == 0
    for at, _ in taken:
        assert sum(amount for then, amount in taken if at - 60 < then <= at) <= limit


@given(st.integers(1, 200), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_pickers_together_admit_no_more_than_the_limit(limit: int, pickers: int) -> None:
    admitted = 0
    for picker in range(pickers):
        limiter = Limiter({"team": Limits(requests_per_minute=limit)}, pickers)
        for number in range(limit + 5):
            admitted += limiter.admit(f"{picker} {number}", "team", 50.0) is None
    assert admitted <= max(limit, pickers)
    assert admitted >= max(limit - pickers + 1, 1)


def test_a_tenant_without_limits_has_none_and_another_s_do_not_count() -> None:
    limiter = Limiter({"small": Limits(requests_per_minute=1)})
    assert all(limiter.admit(f"{n}", "large", 0.0) is None for n in range(500))
    assert limiter.admit("a", "small", 0.0) is None
    refused = limiter.admit("b", "small", 20.5)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.headers()["retry-after"] == "41"
    assert json.loads(refused.body())["error"] == {
        "message": "Your limit of 1 requests a minute is used up; retry in 41 s.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert limiter.admit("c", "small", 20.5 + 41) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["admit", "end"]), st.integers(0, 12)), max_size=80), st.integers(1, 5))
def test_places_at_once_are_never_exceeded_and_always_come_back(steps: list[tuple[str, int]], most: int) -> None:
    limiter = Limiter({"team": Limits(max_concurrent=most)})
    running: set[str] = set()
    for what, number in steps:
        request_id = str(number)
        if what == "end":
            limiter.ended(request_id)
            running.discard(request_id)
        elif request_id not in running:
            refused = limiter.admit(request_id, "team", 0.0)
            assert (refused is None) == (len(running) < most)
            if refused is None:
                running.add(request_id)
        assert limiter.concurrent("team") == len(running) <= most
    for request_id in running:
        limiter.ended(request_id)
    assert limiter.concurrent("team") == 0
    assert not limiter._charges


def test_tokens_are_charged_when_asked_for_and_corrected_when_counted() -> None:
    limiter = Limiter({"team": Limits(tokens_per_minute=1000)})
    assert limiter.admit("a", "team", 0.0, text_bytes=400, max_tokens=800) is None
    assert isinstance(limiter.admit("b", "team", 1.0, text_bytes=400, max_tokens=100), Refusal)
    limiter.ended("a", prompt_tokens=100, output_tokens=50)
    assert limiter.admit("b", "team", 2.0, text_bytes=400, max_tokens=100) is None
    limiter.ended("b", prompt_tokens=100, output_tokens=900)
    assert isinstance(limiter.admit("c", "team", 3.0, text_bytes=4), Refusal)


def test_a_request_of_more_than_a_minute_s_tokens_is_told_so_and_one_above_the_part_passes() -> None:
    limiter = Limiter({"team": Limits(tokens_per_minute=1000)}, pickers=4)
    never = limiter.admit("a", "team", 0.0, text_bytes=8000)
    assert isinstance(never, Refusal)
    assert never.code == "request_exceeds_limit"
    assert "retry-after" not in never.headers()
    assert limiter.admit("b", "team", 0.0, text_bytes=2000) is None
    assert isinstance(limiter.admit("c", "team", 0.0, text_bytes=40), Refusal)
    assert limiter.admit("c", "team", 61.0, text_bytes=40) is None


def test_what_a_request_will_be_is_learned() -> None:
    expected = Expectation()
    assert expected.tokens(400, None) == 100
    assert expected.tokens(400, 300) == 400
    for _ in range(200):
        expected.learn(900, 300, 120)
    assert expected.tokens(900, 4096) == pytest.approx(420, abs=3)
    assert expected.tokens(900, 10) == pytest.approx(310, abs=3)


def test_more_pickers_shrink_the_part_at_once() -> None:
    limiter = Limiter({"team": Limits(requests_per_minute=10)})
    assert all(limiter.admit(f"{n}", "team", 0.0) is None for n in range(5))
    limiter.configure({"team": Limits(requests_per_minute=10)}, pickers=2)
    assert isinstance(limiter.admit("x", "team", 1.0), Refusal)
    limiter.configure({"team": Limits(requests_per_minute=10)}, pickers=1)
    assert limiter.admit("x", "team", 1.0) is None
