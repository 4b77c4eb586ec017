"""Embeddings from the runner and the loop: the same bits whatever the chunks, the company, the preemptions."""

import numpy as np
import pytest

from octavo_engine.core.step import RowResult
from octavo_engine.sampling.sampler import NOT_FINITE
from octavo_engine.worker.backends.scripted import build_scripted
from octavo_engine.worker.failures import ContractError, StepError
from octavo_engine.worker.loop import STEP_FAILED
from octavo_engine.worker.pooling import PromptPooling
from tests.worker import harness
from tests.worker.backends import BACKENDS, Faulty
from tests.worker.driver import Driver

NAN, RAISE = 250, 251
URI = f"scripted://?eos=0&nan={NAN}&raise={RAISE}"


@pytest.fixture(params=sorted(BACKENDS))
def make(request):
    return BACKENDS[request.param]


def prompt_of(seed, length=40):
    return np.random.default_rng(seed).integers(0, 200, length).tolist()


def pooled_row(driver, live, chunk=None):
    return driver.row(live, chunk, pooled=True)._replace(samples=False)


def embed(driver, live, chunk=None, released=()):
    """Admit `live` and compute its prompt; returns its embedding's bytes."""
    admitted = [driver.admission(live)]
    while live.computed < live.prompt:
        (result,) = driver.step([(live, pooled_row(driver, live, chunk))], admitted=admitted, released=released).rows
        admitted, released = [], ()
    return result.pooled


def alone(make, prompt):
    driver = Driver(make())
    return embed(driver, driver.live(prompt))


def test_where_chunks_end_changes_no_bit():
    """Even where float32, or another order, would."""
    hidden = (np.random.default_rng(1).normal(0, 1, (300, 16)) * 10.0 ** np.arange(-8, 8)).astype(np.float32)
    whole = PromptPooling("mean")
    whole.add(hidden)
    for size in (1, 2, 7, 16, 299):
        parts = PromptPooling("mean")
        for start in range(0, 300, size):
            parts.add(hidden[start : start + size])
        assert parts.vector().tobytes() == whole.vector().tobytes()
    exact = hidden.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(whole.vector(), exact, rtol=1e-6, atol=0)


def test_the_last_token_s_state_is_the_last_row():
    hidden = np.random.default_rng(1).normal(0, 1, (9, 4)).astype(np.float32)
    pooling = PromptPooling("last")
    pooling.add(hidden[:5])
    pooling.add(hidden[5:])
    assert pooling.vector().tobytes() == hidden[-1].tobytes()


def test_it_is_the_mean_of_what_the_model_says_of_each_token(make):
    driver, seen = Driver(make()), []
    hidden = driver.executable.last_hidden
    driver.executable.last_hidden = lambda *given: seen.append(np.array(hidden(*given))) or seen[-1]
    vector = np.frombuffer(embed(driver, driver.live(prompt_of(1)), chunk=7), dtype="<f4")
    assert vector.shape == (driver.executable.hidden_size,)
    np.testing.assert_allclose(vector, np.concatenate(seen).astype(np.float64).mean(axis=0), rtol=1e-6)
    assert alone(make, prompt_of(2)) != vector.tobytes()


@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 39])
def test_chunks_company_and_blocks_change_no_bit(make, chunk):
    driver = Driver(make())
    other = driver.live(prompt_of(2), slot=5, first_block=40, temperature=1.5)
    beside = driver.live(prompt_of(3, 25), slot=4, first_block=48)
    driver.generate(other, 2)
    live = driver.live(prompt_of(1), slot=2, first_block=8)
    admitted, told = [driver.admission(live), driver.admission(beside)], {}
    while live.computed < live.prompt or beside.computed < beside.prompt:
        pairs = [(other, driver.row(other))] if len(other.text) < 40 else []
        for each, size in ((live, chunk), (beside, 4)):
            if each.computed < each.prompt:
                pairs.append((each, pooled_row(driver, each, size)))
        results = driver.step(pairs, admitted=admitted).rows
        told |= {each.sequence: result.pooled for (each, _), result in zip(pairs, results, strict=True)}
        admitted = []
    assert told[live.sequence] == alone(make, prompt_of(1))
    assert told[beside.sequence] == alone(make, prompt_of(3, 25))


def test_a_preempted_prompt_begins_again(make):
    driver = Driver(make())
    live = driver.live(prompt_of(1))
    driver.step([(live, pooled_row(driver, live, 23))], admitted=[driver.admission(live)])
    live.computed = 0
    assert embed(driver, live, 16, released=[live.slot]) == alone(make, prompt_of(1))


def test_a_position_left_out_breaks_the_contract(make):
    driver = Driver(make())
    live = driver.live(prompt_of(1))
    live.computed = 16
    with pytest.raises(ContractError, match="pooled from token 16, not 0"):
        driver.step([(live, pooled_row(driver, live))], admitted=[driver.admission(live)])


def test_what_is_in_flight_behind_a_failed_step_is_void(make):
    driver = Driver(Faulty(make()))
    live = driver.live(prompt_of(1))
    behind = pooled_row(driver, live)._replace(start=16, num_tokens=24)
    driver.executable.error = ZeroDivisionError("a kernel's mistake")
    with pytest.raises(StepError):
        driver.step([(live, pooled_row(driver, live, 16))], admitted=[driver.admission(live)])
    driver.executable.error = None
    assert driver.runner.execute(driver.plan([behind])).rows == (RowResult(),)
    driver.runner.forget(live.sequence)
    assert embed(driver, driver.live(prompt_of(1)), released=[live.slot]) == alone(make, prompt_of(1))


def test_what_is_not_finite_fails_alone():
    driver = Driver(build_scripted(URI))
    spoilt, sound = driver.live([*prompt_of(1), NAN]), driver.live(prompt_of(2), slot=1, first_block=16)
    pairs = [(spoilt, pooled_row(driver, spoilt)), (sound, pooled_row(driver, sound))]
    failed, given = driver.step(pairs, admitted=[driver.admission(live) for live in (spoilt, sound)]).rows
    assert (failed.failed, failed.pooled) == (NOT_FINITE, b"")
    assert given.pooled == alone(lambda: build_scripted(URI), prompt_of(2))


# --- the loop ---------------------------------------------------------------------------------------------------
LENGTHS = [1, 5, 16, 17, 33, 64, 90, 120]


def engine(make, num_blocks=96, **config):
    return harness.engine(make(), num_blocks, **({"max_model_len": 128, "max_num_batched_tokens": 48} | config))


@pytest.mark.parametrize("config", [{}, {"policy": "static"}, {"kv_allocation": "contiguous"}, {"depth": 2}])
def test_requests_get_the_embedding_they_would_get_alone(make, config):
    with engine(make, **config) as client:
        client.submit(100, prompt_of(100), max_tokens=30, min_tokens=30)
        for request, length in enumerate(LENGTHS):
            client.embed(request, prompt_of(request, length))
        keys = [(request, 0) for request in range(len(LENGTHS))]
        client.wait_finished(*keys, (100, 0))
        for request, length in enumerate(LENGTHS):
            assert client.pooled[request, 0] == alone(make, prompt_of(request, length))
        assert {client.finish[key] for key in keys} == {"stop"}
        assert {client.started[key] for key in keys} == {1}
        assert not any(client.tokens[key] for key in keys)
        assert len(client.tokens[100, 0]) == 30
        client.until(lambda: client.snapshot.running == 0)
        if config.get("policy") != "static":
            client.scheduler.assert_idle()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_pool_too_small_for_all_changes_nothing(make, depth):
    with engine(make, num_blocks=9, depth=depth) as client:
        for request in range(6):
            client.submit(request, prompt_of(request, 20), max_tokens=60)
        for request in range(10, 16):
            client.embed(request, prompt_of(request, 110))
        client.wait_finished(*((request, 0) for request in (*range(6), *range(10, 16))))
        assert client.snapshot.preemptions > 0
        for request in range(10, 16):
            assert client.pooled[request, 0] == alone(make, prompt_of(request, 110))


def test_a_step_that_fails_ends_its_embeddings_and_no_others():
    with harness.engine(build_scripted(URI), 96) as client:
        client.embed(1, [*prompt_of(1), RAISE])
        client.wait_finished((1, 0))
        client.embed(2, prompt_of(2))
        client.wait_finished((2, 0))
        assert (client.finish[1, 0], client.detail[1, 0], client.pooled[1, 0]) == ("error", STEP_FAILED, b"")
        assert client.pooled[2, 0] == alone(lambda: build_scripted(URI), prompt_of(2))
