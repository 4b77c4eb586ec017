"""Engines of several ranks, in processes of their own over gloo: the tokens of one rank, and one end for all."""

import os
import time

import numpy as np
import psutil
import pytest

from octavo_engine.ipc.messages import Failed
from tests.model.adapters import write_adapter
from tests.model.building import build
from tests.worker import harness
from tests.worker.backends import write_random_llama
from tests.worker.gpu.ranked import ranked_engine

TOKENS = 4


def prompts():
    random = np.random.default_rng(3)
    first = random.integers(0, 384, 20).tolist()
    return [first, [*first[:17], 5, 6], random.integers(0, 384, 60).tolist()]


def alone(folder, adapter=None, **sampling):
    """The same requests' tokens from the CPU engine."""
    with harness.engine(build(folder), 40, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=48) as client:
        if adapter is not None:
            client.load(0, adapter)
            sampling["adapter"] = 0
        for number, prompt in enumerate(prompts()):
            client.submit(number, prompt, max_tokens=TOKENS, **({"seed": number, "temperature": 0.0} | sampling))
        client.wait_finished(*((number, 0) for number in range(3)))
        return [client.tokens[number, 0] for number in range(3)]


@pytest.mark.parametrize(("heads", "size"), [((8, 4), 2), ((8, 2), 4)])
def test_ranks_give_the_tokens_of_one_and_leave_together(heads, size, tmp_path):
    write_random_llama(tmp_path, heads=heads, vocab=387)  # which divides by neither
    with ranked_engine(tmp_path, size) as engine:
        loaded = engine.loaded()
        assert loaded.backend == "triton"
        # One rank's share of the keys and values, of 16 float32 for each of 16 tokens in two layers.
        assert loaded.num_blocks == (4 << 20) // (2 * 2 * max(1, heads[1] // size) * 16 * 4 * 16)
        assert engine.answers(prompts(), TOKENS) == alone(tmp_path)
        if size == 2:
            drawn = {"temperature": 1.3, "top_k": 40}
            assert engine.answers(prompts(), TOKENS, **drawn) == alone(tmp_path, **drawn)
            adapter = write_adapter(tmp_path / "adapter", tmp_path)
            engine.load_adapter(0, adapter)
            adapted = alone(tmp_path, adapter)
            assert engine.answers(prompts(), TOKENS, adapter=0) == adapted != alone(tmp_path)
        ranks = engine.ranks()
        assert len(ranks) == size - 1
        assert engine.leave() == 0
        gone, alive = psutil.wait_procs(ranks, timeout=10)
        assert (len(gone), alive) == (size - 1, [])


def test_a_killed_rank_ends_all_with_a_reason(tmp_path):
    write_random_llama(tmp_path, heads=(8, 4))
    with ranked_engine(tmp_path, 4) as engine:
        engine.loaded()
        ranks = [*engine.ranks(), psutil.Process(engine.process.pid)]
        began = time.monotonic()
        os.kill(ranks[1].pid, 9)
        while not isinstance(message := engine.receive(), Failed):
            pass
        assert message.detail == "Rank 2 of 4 ended (killed by signal 9): the engine stops."
        assert engine.process.wait(10) == 1
        psutil.wait_procs(ranks, timeout=10)
        assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
        assert time.monotonic() - began < 10


def test_heads_that_do_not_divide_are_refused_before_ranks_are_started(tmp_path):
    write_random_llama(tmp_path, heads=(8, 4))
    with ranked_engine(tmp_path, 3) as engine:
        while not isinstance(message := engine.receive(), Failed):
            pass
        assert message.detail.startswith("--tensor-parallel-size 3 does not divide this model with 8 attention heads")
        assert message.detail.endswith("use 1, 2, 4 or 8.")
        assert engine.process.wait(10) == 1
