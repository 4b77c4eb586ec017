"""What a sequence's parameters need on the device belongs to its slot: counts, allowed ids, lists of any length."""

from __future__ import annotations

from tests.worker.driver import Driver
from tests.worker.gpu.both import VOCAB, cpu, gpu, prompt_of, require_same

PENALISED = {"temperature": 1.5, "presence_penalty": 0.8, "frequency_penalty": 0.4, "repetition_penalty": 1.2}


def test_every_kind_of_parameter_in_one_batch_gives_the_cpu_s_tokens():
    """More biases, and ids held back, than a step has room for at first; rows between them that have none."""
    ways = [
        PENALISED | {"seed": 1},
        {"seed": 2, "temperature": 2.0},
        {"seed": 3, "temperature": 2.0, "logit_bias": {token: (token % 7) - 3.0 for token in range(0, VOCAB, 3)}},
        {"seed": 4, "temperature": 0.0, "allowed_token_ids": range(40, 60)} | {"logit_bias": {41: 100.0, 3: 100.0}},
        {"seed": 5, "temperature": 1.0, "min_tokens": 2, "held_back_ids": range(0, VOCAB, 2)},
        PENALISED | {"seed": 6, "min_p": 0.05, "top_k": 50, "allowed_token_ids": range(VOCAB - 9, VOCAB)},
        {"seed": 2**63 + 5, "choice": 3, "temperature": 1e-6, "repetition_penalty": 0.7},
    ]

    def scenario(driver):
        lives = [driver.live(prompt_of(i, 6 + i), slot=i, first_block=8 * i, **way) for i, way in enumerate(ways)]
        for step in range(3):
            admitted = [] if step else [driver.admission(live) for live in lives]
            driver.step([(live, driver.row(live)) for live in lives], admitted=admitted)
        return [live.text for live in lives]

    texts = require_same(scenario)
    assert set(texts[3]) == {41}
    assert all(token % 2 for token in texts[4][:2])
    assert min(texts[5]) >= VOCAB - 9


def test_discarded_tokens_are_not_counted_and_penalties_do_not_touch_them():
    def scenario(driver):
        live = driver.live(prompt_of(1, 9), **PENALISED)
        driver.step([(live, driver.row(live))], admitted=[driver.admission(live)])
        row = driver.row(live)
        driver.step([(live, row._replace(discard=True))])
        live.computed = row.start
        driver.generate(live, 1, admit=False)
        return live.text

    require_same(scenario)


def test_counts_are_rebuilt_when_a_sequence_is_admitted_again():
    def scenario(driver):
        live = driver.live(prompt_of(1, 9), **PENALISED)
        driver.generate(live, 2)
        other = driver.live(prompt_of(2, 5), slot=1, first_block=8, **PENALISED)
        driver.step([(other, driver.row(other))], admitted=[driver.admission(other)], released=[0])
        live.slot, live.computed = 0, 0
        driver.generate(live, 1)
        driver.generate(other, 1, admit=False)
        return live.text, other.text

    require_same(scenario)


def test_a_service_without_penalties_holds_one_row_of_counts():
    driver = Driver(gpu())
    driver.generate(driver.live(prompt_of(1, 5), temperature=0.0), 1)
    sampler = driver.runner._sampler
    assert sampler._counts.shape == (1, VOCAB)
    assert len(sampler._allowed) == 1


def test_warming_up_leaves_no_trace():
    """Whatever it computes is nobody's: the next sequence's counts and tokens are its own."""
    driver = Driver(gpu())
    driver.runner.warm_up()
    live = driver.live(prompt_of(1), temperature=0.0, frequency_penalty=0.5)
    expected = Driver(cpu())
    other = expected.live(prompt_of(1), temperature=0.0, frequency_penalty=0.5)
    assert driver.generate(live, 4) == expected.generate(other, 4)
