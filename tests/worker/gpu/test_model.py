"""Every architecture on the Triton kernels gives the CPU engine's logits, in float32."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from octavo_engine.core.step import Admission, Row, StepPlan
from octavo_engine.worker.gpu.assemble import assemble
from octavo_engine.worker.gpu.compute import RunnerSizes, StepComputer
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.state import DeviceBatch
from tests.model.building import build
from tests.model.stepping import Part, run
from tests.model.test_against_transformers import FAMILIES, random_llama, random_model
from tests.worker.gpu.building import build_gpu

BLOCKS = 24
SIZES = RunnerSizes(4, 200, 64)


class Stepper:
    """A batch of sequences written by hand: (slot, tokens) one step after the other, each row's last logits."""

    def __init__(self, model: GpuModel, **options: bool) -> None:
        model.layout.allocate([BLOCKS] * len(model.layout.groups))
        groups = len(model.layout.groups)
        self.batch = DeviceBatch(
            max_num_seqs=SIZES.max_num_seqs,
            max_model_len=SIZES.max_model_len,
            block_size=16,
            num_groups=groups,
            device=model.device,
        )
        self.groups = groups
        self.computer = StepComputer(model, self.batch, SIZES, **({"invariant": False} | options))
        self.numbers = itertools.count()

    def admit(self, slot: int, tokens: list[int], blocks: list[int]) -> None:
        tables = tuple(tuple(blocks) for _ in range(self.groups))
        admission = Admission(slot, slot, tuple(tokens), len(tokens), tables)
        self.batch.apply(StepPlan(next(self.numbers), (), (admission,), (), (), ()))

    def step(self, *rows: tuple[int, int, int]) -> np.ndarray:
        """Compute rows (slot, start, count), each reaching the end of its tokens, and return their logits."""
        planned = [Row(slot, slot, start, count, True) for slot, start, count in rows]
        step = assemble(planned, [False] * len(rows), [False] * len(rows))
        computed = self.computer.forward(step)
        return self.computer.logits(computed, step, 0, len(rows)).numpy()


def save(family: str, folder: Path) -> Path:
    (random_llama(3) if family == "llama" else random_model(family, 3)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "invariant"),
    [*((family, False) for family in ("llama", *FAMILIES)), ("gemma3", True), ("qwen3 moe", True)],
)
def test_a_step_of_chunks_and_decode_rows_gives_the_cpu_engine_s_logits(
    family: str, invariant: bool, tmp_path: Path
) -> None:
    folder = save(family, tmp_path)
    cpu, gpu = build(folder), build_gpu(folder, invariant=invariant)
    random = np.random.default_rng(4)
    long, short = random.integers(0, 160, 44).tolist(), random.integers(0, 160, 17).tolist()
    tables = [[3, 9, 1], [7, 2]]

    stepper = Stepper(gpu, invariant=invariant)
    stepper.admit(2, long[:36], tables[0])
    stepper.admit(0, short[:16], tables[1])
    first = stepper.step((2, 0, 36))
    second = stepper.step((0, 0, 16))
    stepper.admit(1, long, tables[0])
    stepper.admit(3, short, tables[1])
    mixed = stepper.step((1, 36, 8), (3, 16, 1))

    cpu.layout.allocate([BLOCKS] * len(cpu.layout.groups))
    expected_first = run(cpu, Part(tables[0], long[:36], 0))
    expected_second = run(cpu, Part(tables[1], short[:16], 0))
    expected = run(cpu, Part(tables[0], long[36:], 36), Part(tables[1], short[16:], 16))
    for ours, theirs in ((first, expected_first), (second, expected_second), (mixed, expected)):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)
