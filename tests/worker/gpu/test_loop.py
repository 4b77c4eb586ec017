"""The engine's loop over the GPU's runner: what it says to clients is what it says over the CPU's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from octavo_engine.server.grammar import serialised
from octavo_engine.server.protocol.constraints import read_regex
from tests.worker import harness
from tests.worker.gpu.both import cpu, gpu, prompt_of, require_close
from tests.worker.gpu.test_grammar import vocabulary

SIZES = {"max_model_len": 128, "max_num_seqs": 3, "max_num_batched_tokens": 40}
WAYS = [
    {"temperature": 0.0, "prompt_logprobs": 1, "logprobs": 0},
    {"temperature": 2.0, "n": 2, "logprobs": 1},
    {"temperature": 1.0, "frequency_penalty": 1.0, "grammar": serialised(read_regex("([a-c]{2}-)+"))},
    {"temperature": 1.5, "min_tokens": 4, "stop_token_ids": tuple(range(60))},
]
LENGTHS = (2, 60, 17, 30)
KEYS = [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
EMBEDDED = (9, 0)


def run(executable, *, depth=2, **config):
    with harness.engine(executable, 40, depth=depth, tokens=vocabulary, **(SIZES | config)) as client:
        client.patience = 120
        for number, (length, way) in enumerate(zip(LENGTHS, WAYS, strict=True)):
            client.submit(number, prompt_of(number, length), max_tokens=6, **way)
        client.embed(EMBEDDED[0], prompt_of(9, 45))
        client.wait_finished(*KEYS, EMBEDDED)
        client.until(lambda: client.snapshot.running == 0)
        assert not any(client.detail.values())
        return client


@pytest.mark.parametrize("config", [{"kv_allocation": "contiguous"}, {"policy": "static"}])
def test_clients_are_told_what_the_cpu_would_tell_them(config):
    expected, found = run(cpu()), run(gpu(), **config)
    assert found.tokens == expected.tokens
    assert found.finish == expected.finish
    for key in KEYS:
        require_close(found.logprobs[key], expected.logprobs[key], WAYS[key[0]].get("logprobs", 0))
    ours, theirs = (np.frombuffer(client.pooled[EMBEDDED], "<f4") for client in (found, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    said = [vocabulary().tokens[token] for token in found.tokens[2, 0] if token != harness.EOS[0]]
    assert re.fullmatch(rb"([a-c]{2}-)*[a-c]{0,2}", b"".join(said))


def test_what_is_aborted_leaves_nothing_though_plans_of_it_are_in_flight():
    with harness.engine(gpu(), 40, depth=2, tokens=vocabulary, **SIZES) as client:
        client.patience = 120
        for number in range(3):
            grammar = {"grammar": WAYS[2]["grammar"]} if number == 0 else {}
            client.submit(number, prompt_of(number, 20), max_tokens=40, logprobs=1, **grammar)
        client.embed(3, prompt_of(4, 100))
        client.until(lambda: all(client.tokens.get((number, 0)) for number in range(3)))
        for number in (0, 1, 3):
            client.abort(number)
        client.submit(4, prompt_of(3, 20), max_tokens=2, temperature=0.0)
        client.wait_finished(*((number, 0) for number in (0, 1, 3, 4)))
        client.abort(2)
        client.wait_finished((2, 0))
        client.until(lambda: not client.scheduler.has_work)
        client.scheduler.assert_idle()
        assert client.finish[4, 0] == "length"
        runner = client.runner
        assert not runner._settings
        assert not runner._registered
        assert not runner._failed
        assert not runner._pending
