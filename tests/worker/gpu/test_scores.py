"""Log-probabilities of tokens drawn and of prompts on the GPU: the CPU's records, whatever changes the logits."""

from __future__ import annotations

import pytest

from octavo_engine.worker.gpu.scores import SCORED_AT_ONCE
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, cpu, gpu, prompt_of, require_close

LIMITED = {
    "allowed_token_ids": range(3, 90, 2),
    "logit_bias": {5: 8.0, 7: -9.0},
    "min_tokens": 9,
    "held_back_ids": (9,),
}


def drawn(driver):
    """Rows that want different numbers of alternatives, or nothing, in one batch; their records."""
    ways = [SAMPLED | {"logprobs": 5}, SAMPLED | {"choice": 1}, GREEDY | LIMITED | {"logprobs": 0}, {"logprobs": 33}]
    lives = [driver.live(prompt_of(1, 20), slot=i, first_block=8 * i, **way) for i, way in enumerate(ways)]
    for step in range(2):
        admitted = [] if step else [driver.admission(live) for live in lives]
        driver.step([(live, driver.row(live)) for live in lives], admitted=admitted)
    return lives


def test_tokens_drawn_have_the_probabilities_of_the_logits_as_they_came():
    expected, found = drawn(Driver(cpu())), drawn(Driver(gpu()))
    assert [live.text for live in found] == [live.text for live in expected]
    assert found[0].text != found[1].text, "choices of one seed differ"
    for live, other, alternatives in zip(found, expected, (5, 0, 0, 33), strict=True):
        require_close(live.logprobs, other.logprobs, alternatives)
    assert [len(live.logprobs) for live in found] == [2 * 48, 0, 2 * 8, 2 * (8 + 8 * 33)]


def scored(driver, length, chunk, **settings):
    """A prompt's records, computed beside another sequence."""
    live = driver.live(prompt_of(1, length), slot=2, **(SAMPLED | settings))
    other = driver.live(prompt_of(2, 9), slot=1, first_block=8, prompt_logprobs=1, **GREEDY)
    live.scores, other.scores, records, admitted = True, True, [b"", b""], [driver.admission(live)]
    while not live.text:
        pairs = [(live, driver.row(live, chunk))]
        if other.computed < 9:
            pairs.insert(0, (other, driver.row(other)))
            admitted.append(driver.admission(other))
        results = driver.step(pairs, admitted=admitted).rows[::-1]
        admitted = []
        for index, result in enumerate(results):
            records[index] += result.prompt_logprobs
    return records, live.text


@pytest.mark.parametrize(("length", "chunk", "alternatives"), [(100, None, 0), (40, 17, 3), (17, 16, 1)])
def test_prompts_have_the_cpu_s_records(length, chunk, alternatives):
    assert SCORED_AT_ONCE < 100
    of_parameters = {"prompt_logprobs": alternatives, "logprobs": 1}
    expected, text = scored(Driver(cpu()), length, chunk, **of_parameters)
    found, own = scored(Driver(gpu()), length, chunk, **of_parameters)
    assert own == text
    assert len(found[0]) == (length - 1) * (8 + 8 * alternatives)
    for ours, theirs, count in zip(found, expected, (alternatives, 1), strict=True):
        require_close(ours, theirs, count)


def test_the_logits_of_a_scored_prompt_exist_a_slice_at_a_time(monkeypatch):
    sizes, logits = [], gpu().logits
    monkeypatch.setattr(gpu(), "logits", lambda x, tokens: sizes.append(len(tokens)) or logits(x, tokens))
    scored(Driver(gpu()), 100, None)
    assert sum(sizes) == 99 + 1 + 8 + 1
    assert max(sizes) <= SCORED_AT_ONCE
