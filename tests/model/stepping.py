"""Run an `Executable` without the engine: block tables by hand, greedy decoding in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.worker.executable import Executable, ModelStep


class Part(NamedTuple):
    """One row of a step: `tokens` at positions `start …` of the sequence whose block table is `table`."""

    table: Sequence[int]
    tokens: Sequence[int]
    start: int
    every_position: bool = False
    adapter: int = -1


def build_step(parts: Sequence[Part], block_size: int = 16, groups: int = 1) -> ModelStep:
    """Lay parts out as one step; every KV group uses the same block numbers."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    offsets = [0]
    wanted: list[int] = []
    for part in parts:
        for index, token in enumerate(part.tokens):
            position = part.start + index
            tokens.append(token)
            positions.append(position)
            slots.append(part.table[position // block_size] * block_size + position % block_size)
        first = offsets[-1] if part.every_position else len(tokens) - 1
        wanted += range(first, len(tokens))
        offsets.append(len(tokens))
    width = max(len(part.table) for part in parts)
    tables = np.full((len(parts), width), -1, dtype=np.int32)
    for row, part in enumerate(parts):
        tables[row, : len(part.table)] = part.table

    def ints(values: Sequence[int]) -> NDArray[np.int32]:
        return np.asarray(values, dtype=np.int32)

    return ModelStep(
        tokens=ints(tokens),
        positions=ints(positions),
        row_offsets=ints(offsets),
        context_lengths=ints([part.start + len(part.tokens) for part in parts]),
        block_tables=(tables,) * groups,
        slots=(np.asarray(slots, dtype=np.int64),) * groups,
        logit_tokens=ints(wanted),
        adapters=ints([part.adapter for part in parts]),
    )


def run_step(model: Executable, step: ModelStep) -> NDArray[np.float32]:
    plan = model.plan(step)
    return model.logits(plan, model.forward(plan, model.embed(plan)))


def run(model: Executable, *parts: Part) -> NDArray[np.float32]:
    return run_step(model, build_step(parts, groups=len(model.layout.groups)))


def tables(count: int, num_blocks: int, seed: int | None = None) -> list[list[int]]:
    """Return `count` disjoint block tables, consecutive or (with a seed) scattered."""
    blocks = np.arange(count * num_blocks)
    if seed is not None:
        blocks = np.random.default_rng(seed).permutation(blocks)
    return [[int(block) for block in row] for row in blocks.reshape(count, num_blocks)]


class Generation(NamedTuple):
    """Greedy tokens of each prompt, and the logits they were chosen from, [num_tokens, vocab_size] each."""

    tokens: list[list[int]]
    logits: list[NDArray[np.float32]]


def generate(model: Executable, prompts: Sequence[Sequence[int]], num_tokens: int, adapter: int = -1) -> Generation:
    """Decode greedily, all prompts in one batch, over scattered blocks."""
    longest = max(len(prompt) for prompt in prompts) + num_tokens
    own = tables(len(prompts), -(-longest // 16), seed=len(prompts))
    model.layout.allocate([sum(len(table) for table in own)] * len(model.layout.groups))
    known = [list(prompt) for prompt in prompts]
    computed = [0] * len(prompts)
    steps: list[NDArray[np.float32]] = []
    for _ in range(num_tokens):
        logits = run(
            model,
            *(
                Part(own[row], tokens[computed[row] :], computed[row], adapter=adapter)
                for row, tokens in enumerate(known)
            ),
        )
        steps.append(logits)
        computed = [len(tokens) for tokens in known]
        for row, token in enumerate(logits.argmax(axis=1)):
            known[row].append(int(token))
    generated = [tokens[len(prompt) :] for tokens, prompt in zip(known, prompts, strict=True)]
    return Generation(generated, list(np.stack(steps, axis=1)))
