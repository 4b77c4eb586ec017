"""What was seen becomes figures that hold where all was well, and fall short where one thing was not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from signal import SIGKILL, SIGSTOP

import pytest

from tests.acceptance import rough_clients
from tests.acceptance.engine_kills import Round, Trial
from tests.acceptance.idle import State
from tests.acceptance.lines_5 import of_cases, of_kills, of_storm
from tests.acceptance.schema_cases import Cases
from tests.acceptance.storm import Aftermath, Tally

CALM = State(running=0, waiting=0, active_blocks=0, admitted=90, ended=90)
TALLY = Tally(Counter({(kind, "so"): 3 for kind in rough_clients.ACTS}))
SIZES = {"api": 100, "engine": 100}
AFTERMATH = Aftermath(TALLY, 0.3, CALM, SIZES, {"api": 104, "engine": 103}, "", True)


def short_of(figures):
    return [figure.what for figure in figures if figure.held is False]


def test_a_storm_that_left_nothing():
    assert short_of(of_storm(AFTERMATH)) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tally": dataclasses.replace(TALLY, faults=["status 500"])}, "answers that no client may get"),
        ({"tally": Tally(Counter({("reads", "so"): 1}))}, "what 64 clients did"),
        ({"idle_seconds": 2.1}, "idle after"),
        ({"state": CALM._replace(active_blocks=1)}, "running, waiting, active blocks"),
        ({"state": CALM._replace(ended=89)}, "admitted, and the sum of outcomes"),
        ({"after": {"api": 111, "engine": 100}}, "resident memory"),
        ({"fresh": "a became b"}, "a fresh request"),
        ({"same_engine": False}, "the engine process"),
    ],
)
def test_a_storm_that_left_something(changed, named):
    (what,) = short_of(of_storm(AFTERMATH._replace(**changed)))
    assert what.startswith(named)


def test_memory_may_be_told_only():
    grown = AFTERMATH._replace(after={"api": 200, "engine": 200})
    assert short_of(of_storm(grown, judge_memory=False)) == []


TRIAL = Trial([Round(SIGKILL, 0.1, 1.0), Round(SIGSTOP, 20.5, 2.0)], Counter({"complete": 3}), [], True, CALM)


def test_kills_that_were_noticed():
    assert short_of(of_kills(TRIAL, 2)) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rounds": TRIAL.rounds[:1]}, "signals sent"),
        ({"rounds": [TRIAL.rounds[0], Round(SIGSTOP, 30.1, 2.0)]}, "/health fails after SIGSTOP"),
        ({"rounds": [Round(SIGKILL, 31.0, 2.0), TRIAL.rounds[1]]}, "/health fails after SIGKILL"),
        ({"rounds": [TRIAL.rounds[0], Round(SIGSTOP, 20.5, 60.0)]}, "ready again"),
        ({"faults": ["no end"]}, "streams that ended without"),
        ({"same_server": False}, "the API process"),
        ({"state": None}, "afterwards"),
        ({"state": CALM._replace(running=1)}, "afterwards"),
    ],
)
def test_kills_that_were_not(changed, named):
    (what,) = short_of(of_kills(dataclasses.replace(TRIAL, **changed), 2))
    assert what.startswith(named)


def test_cases_beside_streams():
    cases = Cases(Counter({200: 10, 400: 20}), Counter({"POST /a": 30}), [])
    assert short_of(of_cases(cases, 30, [1, 1, 2, 1], 0, [])) == []
    assert len(short_of(of_cases(cases, 31, [1, 1, 2, 0], 0, ["texts differ"]))) == 3
    assert len(short_of(of_cases(dataclasses.replace(cases, faults=["500"]), 30, [1], 0, []))) == 1
