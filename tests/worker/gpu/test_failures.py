"""What goes wrong on the GPU costs whom it concerns, and nobody else."""

from __future__ import annotations

import pytest

from octavo_engine.core.step import BlockTransfer, Row, RowResult
from octavo_engine.sampling.sampler import NOT_FINITE, NOTHING_ALLOWED
from octavo_engine.worker.failures import ContractError, StepError
from tests.worker.driver import Driver
from tests.worker.gpu.both import SAMPLED, cpu, gpu, prompt_of


def alone(prompt, count):
    driver = Driver(cpu())
    return driver.generate(driver.live(prompt, **SAMPLED), count)


def lives_of(driver, count, length=20):
    return [driver.live(prompt_of(i, length), slot=i, first_block=8 * i, **SAMPLED) for i in range(count)]


@pytest.fixture
def poison(monkeypatch):
    """Rows of logits that are not finite, until the list is cleared."""
    rows, logits = [], gpu().logits

    def poisoned(x, tokens):
        found = logits(x, tokens)
        found[rows] = float("nan")
        return found

    monkeypatch.setattr(gpu(), "logits", poisoned)
    return rows


def test_a_row_that_is_not_finite_fails_alone_and_what_is_in_flight_behind_it_is_void(poison):
    driver = Driver(gpu())
    lives = lives_of(driver, 3)
    driver.step([(x, driver.row(x)) for x in lives], admitted=[driver.admission(x) for x in lives])
    rows = [driver.row(x) for x in lives]
    plans = [driver.plan(rows), driver.plan([row._replace(start=21) for row in rows])]
    poison[:] = [1]
    launched = [driver.runner.launch(plans[0])]
    poison.clear()
    launched.append(driver.runner.launch(plans[1]))
    for plan, each in zip(plans, launched, strict=True):
        result = each.result()
        driver.take(plan, list(zip(lives, plan.rows, strict=True)), result)
    assert result.rows[1] == RowResult()
    assert [live.failed for live in lives] == ["", NOT_FINITE, ""]
    for index in (0, 2):
        assert lives[index].text == alone(prompt_of(index, 20), 3)


def test_log_probabilities_of_a_row_that_is_not_finite_are_nobody_s(poison):
    driver = Driver(gpu())
    lives = [driver.live(prompt_of(i, 9), slot=i, first_block=8 * i, logprobs=2) for i in range(2)]
    poison[:] = [0]
    driver.step([(x, driver.row(x)) for x in lives], admitted=[driver.admission(x) for x in lives])
    assert (lives[0].failed, lives[0].logprobs, lives[1].failed) == (NOT_FINITE, b"", "")
    assert len(lives[1].logprobs) == 8 + 2 * 8


def test_a_scored_position_that_is_not_finite_fails_its_row_alone(poison):
    driver = Driver(gpu())
    live, other = lives_of(driver, 2)
    live.scores, poison[:] = True, [0]
    pairs = [(live, driver.row(live, 9)), (other, driver.row(other, 9))]
    driver.step(pairs, admitted=[driver.admission(live), driver.admission(other)])
    assert (live.failed, other.failed) == (NOT_FINITE, "")


def test_a_row_that_may_say_nothing_fails_alone():
    driver = Driver(gpu())
    (other,) = lives_of(driver, 1)
    forbidden = {"allowed_token_ids": [3], "min_tokens": 2, "held_back_ids": [3]}
    live = driver.live(prompt_of(1, 9), slot=1, first_block=8, **forbidden)
    pairs = [(live, driver.row(live)), (other, driver.row(other))]
    plan = driver.plan([row for _, row in pairs], admitted=[driver.admission(x) for x in (live, other)])
    behind = driver.plan([Row(1, live.sequence, 9, 1, True)])
    launched = [driver.runner.launch(each) for each in (plan, behind)]
    driver.take(plan, pairs, launched[0].result())
    assert launched[1].result().rows == (RowResult(),)
    assert (live.failed, other.failed) == (NOTHING_ALLOWED, "")
    assert other.text == alone(prompt_of(0, 20), 1)


# --- whole steps ------------------------------------------------------------------------------------------------
def broken(*_):
    raise ZeroDivisionError("a kernel's mistake")


def test_a_step_that_raises_names_its_rows_and_the_others_go_on(monkeypatch):
    driver = Driver(gpu())
    sound, failing = lives_of(driver, 2)
    driver.generate(sound, 1)
    with monkeypatch.context() as patched:
        patched.setattr(gpu(), "forward", broken)
        plan = driver.plan([driver.row(failing)], admitted=[driver.admission(failing)])
        launched = [driver.runner.launch(plan)]
    behind = driver.plan([Row(1, failing.sequence, 20, 1, True), driver.row(sound)])
    launched.append(driver.runner.launch(behind))
    with pytest.raises(StepError, match=rf"sequence {failing.sequence} at 0\+20 in slot 1") as raised:
        launched[0].result()
    assert raised.value.sequences == (failing.sequence,)
    result = launched[1].result()
    assert result.rows[0] == RowResult()
    driver.take(behind, [(sound, behind.rows[1])], result._replace(rows=result.rows[1:]))
    assert sound.text == alone(prompt_of(0, 20), 2)
    driver.runner.forget(failing.sequence)
    fresh = driver.live(prompt_of(1, 20), slot=1, first_block=8, **SAMPLED)
    driver.step([(fresh, driver.row(fresh))], released=[1], admitted=[driver.admission(fresh)])
    assert fresh.text == alone(prompt_of(1, 20), 1)


def test_the_probe_computes_without_a_trace_and_tells_a_broken_backend(monkeypatch):
    driver = Driver(gpu())
    (live,) = lives_of(driver, 1)
    driver.runner.probe()
    driver.generate(live, 1)
    driver.runner.probe()
    driver.generate(live, 1, admit=False)
    assert live.text == alone(prompt_of(0, 20), 2)
    for part in ("forward", "logits"):
        with monkeypatch.context() as patched:
            patched.setattr(gpu(), part, broken)
            with pytest.raises(ZeroDivisionError):
                driver.runner.probe()


def test_a_step_of_more_tokens_than_there_is_room_for_fails_and_overwrites_nothing():
    driver = Driver(gpu())
    (live,) = lives_of(driver, 1)
    driver.generate(live, 1)
    large = [driver.live(prompt_of(i, 70), slot=i, first_block=8 * i) for i in (1, 2)]
    with pytest.raises(StepError, match="140 tokens: there is room for 128"):
        driver.step([(x, driver.row(x)) for x in large], admitted=[driver.admission(x) for x in large])
    driver.generate(live, 1, admit=False)
    assert live.text == alone(prompt_of(0, 20), 2)


def test_tokens_without_a_block_are_not_written_to_the_blocks_of_the_slot_s_last_sequence():
    driver = Driver(gpu())
    first, second = lives_of(driver, 2)
    driver.generate(first, 1)
    second.slot = 0
    admission = driver.admission(second, second.blocks[:1])
    with pytest.raises(StepError, match="has no block"):
        driver.step([(second, driver.row(second))], admitted=[admission], released=[0])


def test_what_breaks_the_contract_is_not_taken_for_a_failed_step():
    driver = Driver(gpu())
    (live,) = lives_of(driver, 1)
    with pytest.raises(RuntimeError, match="before it was registered"):
        driver.runner.execute(driver.plan(admitted=[driver.admission(live)._replace(sequence=99)]))
    driver.runner.execute(driver.plan(admitted=[driver.admission(live)]))
    for admission, sentence in (
        (driver.admission(live), "still belongs to sequence"),
        (driver.admission(live)._replace(slot=1, tokens=tuple(range(130))), "there is no room"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            driver.runner.execute(driver.plan(admitted=[admission]))
    with pytest.raises(ContractError, match="does not hold sequence"):
        driver.runner.execute(driver.plan([driver.row(live)._replace(slot=1)]))
    with pytest.raises(ContractError, match="has drafts"):
        driver.runner.execute(driver.plan([driver.row(live, drafts=[1])]))
    with pytest.raises(ContractError, match="host memory"):
        driver.runner.execute(driver.plan(transfers=[BlockTransfer(0, 1, 0, saves=True)]))
