"""Row invariance on the code paths that other processors take, as far as this one can walk them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import torch
from octavo_kernels.reference.selfcheck import check_attention, check_elementwise, check_linear

torch.set_num_threads(1)
check_linear([torch.randn(n, k) for n, k in ((960, 576), (3072, 576), (576, 1536), (131, 48), (154, 48), (48, 77))])
check_elementwise(576, 1536)
check_elementwise(48, 77)
for shape in ((9, 3, 64), (6, 2, 10), (1, 1, 8), (32, 8, 128), (34, 2, 16)):
    check_attention(*shape, 16)
"""


@pytest.mark.parametrize(
    "path",
    [
        {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
        {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    ],
    ids=["avx2", "compatible"],
)
def test_a_rows_place_in_its_tile_does_not_matter(path: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=os.environ | path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
