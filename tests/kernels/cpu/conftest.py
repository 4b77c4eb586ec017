"""A pool for each instruction-set variant of this machine."""

from __future__ import annotations

import pytest

from octavo_kernels.cpu._native import Pool, variants


@pytest.fixture(scope="session")
def pools() -> dict[str, Pool]:
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        for variant in variants():
            patch.setenv("OCTAVO_CPU_ISA", variant)
            made[variant] = Pool(2)
    return made


@pytest.fixture(scope="session", params=variants())
def pool(request: pytest.FixtureRequest, pools: dict[str, Pool]) -> Pool:
    return pools[request.param]
