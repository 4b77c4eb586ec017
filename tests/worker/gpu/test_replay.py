"""Which decode steps are replayed, and that rows which are void, discarded or nobody's change no token there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from octavo_engine.core.step import Row, RowResult
from octavo_engine.worker.gpu import compute
from octavo_engine.worker.gpu.graphs import Captured, DecodeGraphs
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, cpu, gpu, prompt_of, require_close

WAYS = [SAMPLED | {"logprobs": 1}, GREEDY, {"seed": 4, "temperature": 2.0, "logit_bias": {7: 3.0}, "min_p": 0.01}]


class Launches(DecodeGraphs):
    """Graphs without a device that captures: a replay launches again what was launched, with the same arguments."""

    replays: list[int]

    def capture(self, size, planner, launch):
        x, logits = launch()

        def replay():
            self.replays.append(size)
            again = launch()
            x.copy_(again[0])
            logits.copy_(again[1])

        self._captured[size] = Captured(size, planner, SimpleNamespace(replay=replay), x, logits)


@pytest.fixture
def replays(monkeypatch):
    """The sizes of the graphs that were replayed."""
    Launches.replays = []
    monkeypatch.setattr(compute, "DecodeGraphs", Launches)
    return Launches.replays


@pytest.mark.parametrize("invariant", [False, True])
def test_steps_of_one_token_a_row_are_replayed_and_give_the_cpu_s_tokens(replays, invariant):
    def scenario(driver):
        lives = [driver.live(prompt_of(i, 14 + i), slot=2 * i, first_block=8 * i, **WAYS[i]) for i in range(3)]
        admitted = [driver.admission(live) for live in lives]
        driver.step([(live, driver.row(live)) for live in lives], admitted=admitted)
        for count in (3, 2, 1):
            driver.step([(live, driver.row(live)) for live in lives[:count]])
        return lives

    found = scenario(Driver(gpu(), graph_sizes=(1, 2, 4), invariant=invariant))
    assert replays == [4, 2, 1]
    for live, expected in zip(found, scenario(Driver(cpu())), strict=True):
        assert live.text == expected.text
        require_close(live.logprobs, expected.logprobs, 1)


def test_void_and_discarded_rows_are_replayed_too_and_what_is_no_decode_step_is_not(replays):
    driver = Driver(gpu(), graph_sizes=(4,))
    live, other = (driver.live(prompt_of(i, 16), slot=i, first_block=8 * i, **SAMPLED) for i in range(2))
    pairs = [(live, driver.row(live)), (other, driver.row(other))]
    driver.step(pairs, admitted=[driver.admission(live), driver.admission(other)])
    void, discarded = Row(1, other.sequence, 19, 1, True), Row(1, other.sequence, 15, 1, True, discard=True)
    for row in (void, discarded):
        plan = driver.plan([row, driver.row(live)])
        first, second = driver.runner.execute(plan).rows
        assert first == RowResult()
        live.tokens += second.tokens
        live.computed += 1
    assert replays == [4, 4]
    last = driver.row(other)
    for row in (last._replace(samples=False), last._replace(padding=2)):
        driver.step([(other, row._replace(discard=True))])
    driver.generate(other, 1, admit=False)
    assert replays == [4, 4, 4]
    for each, seed in ((live, 0), (other, 1)):
        alone = Driver(cpu())
        expected = alone.generate(alone.live(prompt_of(seed, 16), **SAMPLED), len(each.text))
        assert each.text == expected
