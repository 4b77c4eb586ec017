"""The whole GPU engine gives the CPU engine's tokens, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.gpu.twelve import KINDS, REQUESTS, write_twice

TOKENS = 8


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_requests_give_the_cpu_engine_s_tokens(kind: str, tmp_path: Path) -> None:
    gpu, cpu = write_twice(kind, tmp_path, TOKENS, pool=10)
    assert cpu.snapshot.preemptions == 0
    assert gpu.snapshot.preemptions >= 1
    assert gpu.snapshot.prefix_hit_tokens >= 32
    assert [len(text) for text in gpu.tokens] == [TOKENS] * REQUESTS
    assert gpu.tokens == cpu.tokens
