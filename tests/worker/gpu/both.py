"""A tiny model on both engines, and what happens to it: the same plans, written by hand, give the same results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from octavo_engine.sampling.records import record_type
from octavo_engine.worker.executable import Executable
from octavo_engine.worker.gpu.model import GpuModel
from tests.model.building import build
from tests.worker.backends import write_random_llama
from tests.worker.driver import Driver
from tests.worker.gpu.building import build_gpu

VOCAB = 272
SAMPLED = {"seed": 11, "temperature": 3.0, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "top_p": 0.98}
GREEDY = {"temperature": 0.0}
TOLERANCE = 2e-5
"""Of log-probabilities: both engines compute in float32, each summing in its own order."""


@cache
def _folder() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="octavo-test-")
    write_random_llama(Path(folder.name), vocab=VOCAB, layers=1, heads=(2, 1), head_dim=16)
    return folder


def tiny_folder() -> Path:
    """One layer, two heads, 272 tokens: the interpreter computes a step in a tenth of a second."""
    return Path(_folder().name)


@cache
def cpu() -> Executable:
    """The CPU engine's model, in float32."""
    return build(tiny_folder(), threads=1)


@cache
def gpu() -> GpuModel:
    """The GPU engine's, on CPU tensors, in float32."""
    return build_gpu(tiny_folder(), max_tokens=128)


def prompt_of(seed: int, length: int = 40) -> list[int]:
    """Token ids of a prompt."""
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def require_same(scenario: Callable[[Driver], Any], **options: Any) -> Any:
    """Let both engines' runners execute a scenario's plans; what it returns must be the same. Returns it."""
    expected = scenario(Driver(cpu(), **options))
    found = scenario(Driver(gpu(), **options))
    assert found == expected
    return found


def require_close(found: bytes, expected: bytes, alternatives: int) -> None:
    """The same records of log-probabilities: ids and ranks exactly, the numbers within the tolerance."""
    ours, theirs = (np.frombuffer(data, record_type(alternatives)) for data in (found, expected))
    np.testing.assert_array_equal(ours["rank"], theirs["rank"])
    np.testing.assert_array_equal(ours["top"]["id"], theirs["top"]["id"])
    np.testing.assert_allclose(ours["logprob"], theirs["logprob"], atol=TOLERANCE)
    np.testing.assert_allclose(ours["top"]["logprob"], theirs["top"]["logprob"], atol=TOLERANCE)
