"""The baselines that the product is measured against are real, and change no token."""

import numpy as np
import pytest

from octavo_engine.core.speculation import PromptLookup
from tests.worker import harness
from tests.worker.backends import BACKENDS

NUM_BLOCKS = 96
COMBINATIONS = [
    {"policy": policy, "kv_allocation": allocation, "prefix_sharing": sharing}
    for policy in ("continuous", "static")
    for allocation in ("paged", "contiguous")
    for sharing in (True, False)
]


def prompts():
    random = np.random.default_rng(5)
    system = random.integers(0, 256, 40).tolist()
    return [system + random.integers(0, 256, 3 + 3 * index).tolist() for index in range(10)]


@pytest.fixture(params=sorted(BACKENDS))
def make(request):
    return BACKENDS[request.param]


def run(make, pool=NUM_BLOCKS, **config):
    """Return every request's text and the last snapshot."""
    sizes = {"max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 48} | config
    with harness.engine(make(), pool, **sizes) as client:
        keys = [(request, 0) for request in range(10)]
        for request, prompt in enumerate(prompts()):
            length = 6 + 4 * (request % 5)  # whatever tokens random weights choose
            client.submit(request, prompt, max_tokens=length, min_tokens=length, temperature=float(request % 2) * 2)
        client.wait_finished(*keys)
        client.until(lambda: client.snapshot.running == 0)
        if config.get("policy") != "static":
            client.scheduler.assert_idle()
        return [client.tokens[key] for key in keys], client.snapshot


def test_all_eight_combinations_write_the_same_text(make):
    texts = {}
    for combination in COMBINATIONS:
        texts[tuple(combination.values())], snapshot = run(make, **combination)
        assert (snapshot.static_batches > 0) == (combination["policy"] == "static")
        assert (snapshot.reserved_slots > 0) == (combination["kv_allocation"] == "contiguous")
        assert (snapshot.prefix_hit_tokens > 0) == combination["prefix_sharing"]
        assert snapshot.preemptions == 0
    reference = texts["continuous", "paged", True]
    assert all(len(text) == 6 + 4 * (request % 5) for request, text in enumerate(reference))
    assert {name for name, text in texts.items() if text != reference} == set()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("places", [5, 200])
def test_a_host_tier_changes_no_token(make, depth, places):
    reference, _ = run(make, depth=depth)
    small = {"max_num_seqs": 3, "depth": depth, "pool": 9}
    texts, snapshot = run(make, places=places, **small)
    assert texts == reference
    assert snapshot.host_loaded_blocks > 0
    _, without = run(make, **small)
    assert snapshot.prefix_hit_tokens + snapshot.prefix_miss_tokens == without.prefix_hit_tokens + (
        without.prefix_miss_tokens
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_pool_too_small_for_all_preempts_and_changes_nothing(make, depth):
    """Neither text, nor counts, nor what is told once: penalties, min_tokens, seeds, choices, prompts' scores survive.

    Speculation neither.
    """

    def texts_of(num_blocks, drafts=None):
        sizes = {"max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 48}
        with harness.engine(make(), num_blocks, depth=depth, drafts=drafts, **sizes) as client:
            for request, prompt in enumerate(prompts()):
                scored = 0 if request % 3 == 0 else -1
                how = {"temperature": 2.0, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "min_tokens": 10}
                how["logprobs"] = request % 4 - 1
                client.submit(
                    request, prompt, max_tokens=26 + 4 * (request % 5), n=1 + request % 2, prompt_logprobs=scored, **how
                )
            keys = [(request, choice) for request in range(10) for choice in range(1 + request % 2)]
            client.wait_finished(*keys)
            client.until(lambda: client.snapshot.running == 0)
            client.scheduler.assert_idle()
            assert all(client.started[key] == 1 for key in keys)
            scores = [client.prompt_logprobs[key] for key in keys]
            assert [len(each) for each in scores] == [
                len(prompts()[request]) - 1 if request % 3 == 0 and choice == 0 else 0 for request, choice in keys
            ]
            assert all(bool(client.logprobs[key]) == (key[0] % 4 > 0) for key in keys)
            told = zip(keys, scores, strict=True)
            return [(client.tokens[key], client.logprobs[key], own) for key, own in told], client.snapshot

    reference, roomy = texts_of(NUM_BLOCKS)
    texts, snapshot = texts_of(8)
    assert roomy.preemptions == 0
    assert snapshot.preemptions >= 3
    assert texts == reference
    assert texts_of(8, PromptLookup(4))[0] == reference
    for one in (roomy, snapshot):
        assert one.prefix_hit_tokens + one.prefix_miss_tokens == sum(
            len(prompt) * (1 + request % 2) for request, prompt in enumerate(prompts())
        )
