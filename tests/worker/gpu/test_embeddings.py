"""Embeddings on the GPU: those of the CPU, whatever the chunks and the plans in flight."""

from __future__ import annotations

import numpy as np
import pytest

from octavo_engine.core.step import RowResult
from octavo_engine.worker.failures import ContractError
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, cpu, gpu, prompt_of


def pooled_row(driver, live, count=None):
    return driver.row(live, count, pooled=True)._replace(samples=False)


def embed(driver, live, chunk=None, **deltas):
    """Admit `live` and compute its prompt; returns its embedding's bytes."""
    deltas["admitted"] = [driver.admission(live)]
    while live.computed < live.prompt:
        (result,) = driver.step([(live, pooled_row(driver, live, chunk))], **deltas).rows
        deltas = {}
    return result.pooled


def alone(prompt, pooling="mean"):
    driver = Driver(cpu(), pooling=pooling)
    return embed(driver, driver.live(prompt))


def require_near(found, expected):
    assert len(found) == len(expected) == 4 * gpu().hidden_size
    np.testing.assert_allclose(np.frombuffer(found, "<f4"), np.frombuffer(expected, "<f4"), atol=2e-5)


@pytest.mark.parametrize(("pooling", "chunk"), [("mean", None), ("mean", 17), ("last", 16), ("last", 39)])
def test_chunks_and_company_change_nothing(pooling, chunk):
    driver = Driver(gpu(), pooling=pooling)
    other = driver.live(prompt_of(2, 20), slot=5, first_block=40, **GREEDY)
    driver.generate(other, 1)
    live, told = driver.live(prompt_of(1), slot=2, first_block=8), b""
    admitted = [driver.admission(live)]
    while live.computed < live.prompt:
        pairs = [(other, driver.row(other)), (live, pooled_row(driver, live, chunk))]
        told = driver.step(pairs, admitted=admitted).rows[1].pooled
        admitted = []
    require_near(told, alone(prompt_of(1), pooling))


def test_a_preempted_prompt_begins_again_though_its_last_chunk_is_in_flight():
    driver = Driver(gpu())
    live = driver.live(prompt_of(1))
    first = driver.plan([pooled_row(driver, live, 23)], admitted=[driver.admission(live)])
    whole = driver.plan([pooled_row(driver, live)], admitted=[driver.admission(live)], released=[0])
    launched = [driver.runner.launch(plan) for plan in (first, whole)]
    assert launched[0].result().rows == (RowResult(),)
    require_near(launched[1].result().rows[0].pooled, alone(prompt_of(1)))


def test_chunks_in_flight_at_the_same_time():
    driver = Driver(gpu())
    live = driver.live(prompt_of(1))
    first = driver.plan([pooled_row(driver, live, 23)], admitted=[driver.admission(live)])
    live.computed = 23
    launched = [driver.runner.launch(first), driver.runner.launch(driver.plan([pooled_row(driver, live)]))]
    assert launched[0].result().rows == (RowResult(),)
    driver.runner.forget(live.sequence)
    require_near(launched[1].result().rows[0].pooled, alone(prompt_of(1)))


def test_a_position_left_out_breaks_the_contract():
    driver = Driver(gpu())
    live = driver.live(prompt_of(1))
    live.computed = 16
    with pytest.raises(ContractError, match="pooled from token 16, not 0"):
        driver.step([(live, pooled_row(driver, live))], admitted=[driver.admission(live)])
