"""What benches found becomes figures: a peer that is missing, and a bench that failed, fall short in every form."""

from __future__ import annotations

import pytest

from octavo_engine.bench.peers.point import POINTS
from octavo_engine.bench.peers.ratio import LINES as PROMISES
from octavo_engine.bench.peers.schedule import BEST_BATCH
from octavo_engine.bench.peers.serving import OWN, plan
from tests.acceptance.figures import at_most, failed, without_promises
from tests.acceptance.lines_4 import PEER_SERVERS, Settings, line_7, of_ratios, of_served
from tests.acceptance.running import Ran

RAN = Ran("octavo bench", 0, "", 1.0)
NAMES = [point.name for point in POINTS]


def short_of(figures):
    return [figure.what for figure in figures if figure.held is False]


def compared(*absent):
    """All that is promised, each just kept; without these contenders."""
    titles = {point.name: point.title for point in POINTS}
    keys = {key for promise in PROMISES for key in (promise.ours, *promise.peers) if key[1] not in absent}
    ratios = [
        {
            "title": promise.title,
            "point": promise.ours[0],
            "ours": promise.ours[1],
            "best": next(name for _, name in promise.peers if name not in absent),
            "ratio": {"median": promise.least},
        }
        for promise in PROMISES
        if promise.ours[1] not in absent and any(name not in absent for _, name in promise.peers)
    ]
    return {
        "figures": [{"point": titles[point], "contender": name} for point, name in keys if point != BEST_BATCH],
        "best_batch": {name: 64 for point, name in keys if point == BEST_BATCH},
        "ratios": ratios,
    }


def test_every_promise_is_a_figure():
    figures = list(of_ratios(1, compared(), NAMES, RAN))
    assert len(figures) == len(PROMISES)
    assert short_of(figures) == []


@pytest.mark.parametrize("contender", ["octavo:int8", "vllm:bf16", "llamacpp:file", "llamacpp:BF16", "openvino:file"])
def test_a_contender_that_is_missing_falls_short(contender):
    figures = list(of_ratios(1, compared(contender), NAMES, RAN))
    assert len(figures) == len(PROMISES)
    wanted = [one for one in PROMISES if contender in (one.ours[1], *(name for _, name in one.peers))]
    unmeasured = [figure for figure in figures if not figure.measured]
    assert len(unmeasured) == len(wanted) > 0
    assert all(figure.held is False and contender in figure.figure for figure in unmeasured)


def test_a_ratio_below_what_is_promised():
    found = compared()
    found["ratios"][0]["ratio"]["median"] = PROMISES[0].least - 0.01
    assert len(short_of(of_ratios(1, found, NAMES, RAN))) == 1


def served(**changed):
    """Each run of the plan, ours twice as fast; `changed` has p99 of TTFT by server."""
    runs = []
    for server, rate_of in plan(dict.fromkeys((*PEER_SERVERS, OWN), 1.0)):
        seconds = 0.1 if server == OWN else 0.2
        found = {name: {"p99": seconds} for name in ("ttft", "itl", "health")}
        if server in changed:
            found |= {"ttft": {"p99": changed[server]}}
        runs.append({"server": server, "rate_of": rate_of, "found": found})
    return runs


def test_lower_than_every_server():
    figures = list(of_served(served(), RAN))
    assert len(figures) == 4 * 2 + 1
    assert short_of(figures) == []


@pytest.mark.parametrize(
    ("changed", "short"),
    [
        ({"vllm": 0.1}, 2),
        ({"vllm": "infinite"}, 0),
        ({"vllm": None}, 2),
        ({OWN: "infinite"}, 4),
        ({OWN: None}, 4),
    ],
    ids=["no lower", "theirs failed", "theirs has no figure", "ours failed", "ours has no figure"],
)
def test_a_server_beside_ours(changed, short):
    assert len(short_of(of_served(served(**changed), RAN))) == short


def test_a_server_that_did_not_run():
    runs = [run for run in served() if run["server"] != "llamacpp"]
    assert len(short_of(of_served(runs, RAN))) == 2
    assert "/health p99, s" in short_of(of_served([], RAN))


def test_the_short_form_forgives_a_slow_machine_only():
    figures = [at_most(1, "slow", 2.0, 1.0, RAN), at_most(1, "none", None, 1.0, RAN), failed(1, RAN)]
    assert [figure.held for figure in without_promises(figures)] == [None, False, False]


def test_the_short_form_names_what_it_leaves_out():
    (figure,) = line_7(Settings(short=True, texts=[], install=False))
    assert figure.held is None
