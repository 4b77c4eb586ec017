"""Embeddings of real models: those of `transformers`, and the same bits however they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.stop import StopRule
from octavo_engine.model.pooling import Kind
from octavo_engine.sampling.settings import prepare
from octavo_engine.worker.executable import Executable
from octavo_engine.worker.runner import Runner
from tests.model.building import BACKENDS, build, build_in_cache
from tests.model.exactness import transformers_model
from tests.model.test_against_transformers import FAMILIES, random_llama, random_model

MAX_LEN = 512
TOLERANCE = 1e-4


def embed(
    model: Executable,
    prompts: Sequence[Sequence[int]],
    *,
    budget: int = 2048,
    blocks: int = 100,
    preempt_after: tuple[int, ...] = (),
    writer: Sequence[int] = (),
    pooling: Kind = "mean",
) -> list[bytes]:
    """Return the embeddings as scheduler and runner give them.

    preempt_after: the steps after which every sequence that runs is preempted. writer: a prompt that is continued
    beside them all the while.
    """
    model.layout.allocate([blocks] * len(model.layout.groups))
    groups = tuple(CacheGroup(blocks, group.window) for group in model.layout.groups)
    config = SchedulerConfig(groups=groups, max_model_len=MAX_LEN, max_num_seqs=16, max_num_batched_tokens=budget)
    scheduler = create_scheduler(config)
    runner = Runner(model, max_num_seqs=16, max_model_len=MAX_LEN, pooling=pooling)
    requests = [(prompt, StopRule(0)) for prompt in prompts]
    if writer:
        requests.insert(0, (writer, StopRule(MAX_LEN - len(writer), ignore_eos=True)))
    for sequence, (prompt, stop) in enumerate(requests, start=0 if writer else 1):
        runner.register(sequence, prepare(model.vocab_size, seed=sequence))
        request = Request((sequence,), tuple(prompt), stop, arrival=float(sequence), pooled=stop.max_tokens == 0)
        assert scheduler.submit(request) is None
    told: dict[int, bytes] = {}
    steps = 0
    while len(told) < len(prompts):
        plan = scheduler.schedule()
        assert plan is not None
        events = scheduler.commit(plan, runner.execute(plan))
        told |= {event.sequence: event.pooled for event in events if event.finish and event.sequence}
        steps += 1
        if steps in preempt_after:
            for running in list(scheduler.running):
                scheduler.preempt(running.id)
    scheduler.abort(0)
    scheduler.assert_idle()
    assert steps > max(preempt_after, default=0), "or nobody was preempted"
    return [told[sequence] for sequence in range(1, len(prompts) + 1)]


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length: NDArray[np.float64] = np.linalg.norm(vector)
    return vector / length


def expected(theirs: PreTrainedModel, prompt: Sequence[int], pooling: Kind) -> NDArray[np.float64]:
    with torch.no_grad():
        hidden = theirs.base_model(torch.tensor([list(prompt)])).last_hidden_state[0].double().numpy()
    return unit(hidden.mean(axis=0) if pooling == "mean" else hidden[-1])


def check_equal(ours: Executable, theirs: PreTrainedModel, prompts: Sequence[Sequence[int]], budget: int) -> None:
    kinds: tuple[Kind, ...] = ("mean", "last")
    for pooling in kinds:
        for prompt, vector in zip(prompts, embed(ours, prompts, budget=budget, pooling=pooling), strict=True):
            got = unit(np.frombuffer(vector, dtype="<f4").astype(np.float64))
            np.testing.assert_allclose(got, expected(theirs, prompt, pooling), rtol=0, atol=TOLERANCE)


def random_prompts(vocab_size: int, lengths: Sequence[int]) -> list[list[int]]:
    return [[int(t) for t in np.random.default_rng(n).integers(0, vocab_size, n)] for n in lengths]


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_llama_gives_the_embeddings_of_transformers(backend: str, tmp_path: Path) -> None:
    theirs = random_llama(3)
    theirs.save_pretrained(tmp_path)
    check_equal(build(tmp_path, backend), theirs, random_prompts(160, (1, 16, 17, 300)), budget=64)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_embeddings_of_transformers(family: str, tmp_path: Path) -> None:
    theirs = random_model(family, 5)
    theirs.save_pretrained(tmp_path)
    check_equal(build(tmp_path), theirs, random_prompts(160, (1, 16, 17, 200)), budget=64)


def test_the_bundled_model_gives_the_embeddings_of_transformers(smollm2_path: Path) -> None:
    ours, theirs = build_in_cache(smollm2_path, dtype="float32"), transformers_model(smollm2_path)
    check_equal(ours, theirs, random_prompts(49152, (1, 20, 150)), budget=2048)


WAYS: dict[str, dict[str, Any]] = {
    "chunks of 16": {"budget": 16},
    "chunks of 64": {"budget": 64},
    "beside one that writes": {"budget": 64, "writer": range(5, 30)},
    "preempted twice": {"budget": 64, "preempt_after": (1, 3)},
    "preempted in small chunks": {"budget": 16, "preempt_after": (2, 3, 9)},
    "in a small pool": {"budget": 64, "blocks": 32},
}


def check_bits(model: Executable, lengths: Sequence[int]) -> None:
    prompts = random_prompts(model.vocab_size, lengths)
    alone = [embed(model, [prompt])[0] for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    assert embed(model, prompts) == alone, "in one batch"
    for name, how in WAYS.items():
        assert embed(model, prompts, **how) == alone, name


def test_a_random_model_s_embeddings_are_the_same_bits_however_computed(random_llama: Executable) -> None:
    check_bits(random_llama, (1, 5, 16, 17, 40, 63, 64, 65, 130, 255, 300))


def test_the_real_model_s_embeddings_are_the_same_bits_however_computed(smollm2: Executable) -> None:
    check_bits(smollm2, (3, 16, 50, 170))
