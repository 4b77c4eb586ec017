"""What the host tier spares: a trace of conversations in caches that hold all of it, a quarter, a quarter and a tier.

`recomputed` tokens are those that a cache without an end would have had and that were computed.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from octavo_engine.bench.harness import Harness, RunResult, Tell
from octavo_engine.bench.workload import Item
from octavo_engine.commands.bench_options import telling
from octavo_engine.contract import BLOCK_SIZE
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.cgroup import compute_threads
from tests.model.conftest import write_random_llama

SHRUNK: Final = 32
"""What lengths are divided by: the trace names 512 tokens by one hash, which is one block of 16 then."""
CONTEXT: Final = 8192
MAX_NUM_SEQS: Final = 16


class Spared(NamedTuple):
    """Tokens recomputed without the tier and with it, and whether all runs wrote the same."""

    without: int
    with_tier: int
    loaded_blocks: int
    identical: bool

    @property
    def share(self) -> float:
        """Of the tokens recomputed without the tier, those still recomputed with it."""
        return self.with_tier / self.without


def read_mooncake(path: Path, count: int, vocab: int) -> list[Item]:
    """Return the first requests of a trace in Mooncake's format, shrunk, in the order they came in."""
    with path.open(encoding="utf-8") as stream:
        rows = [json.loads(line) for line, _ in zip(stream, range(count), strict=False)]
    items = []
    for row in sorted(rows, key=lambda row: row["timestamp"]):
        prompt = [token for name in row["hash_ids"] for token in _block(name, vocab)]
        items.append(
            Item(tuple(prompt[: max(1, row["input_length"] // SHRUNK)]), max(1, row["output_length"] // SHRUNK))
        )
    return items


def conversations(count: int, turns: int, vocab: int) -> list[Item]:
    """Return conversations whose turns take turns: each prompt begins with the whole of the last one."""
    draw = random.Random(0)
    prompts: list[list[int]] = [[] for _ in range(count)]
    items = []
    for _ in range(turns):
        for index, prompt in enumerate(prompts):
            for part in range(draw.randint(2, 6)):
                prompt += _block((index, len(prompt), part), vocab)
            items.append(Item(tuple(prompt), draw.randint(1, 12)))
    return items


def spared(items: Sequence[Item], clients: int) -> Spared:
    """Run the items three ways on a random model; `clients` as `Harness.run` takes them."""
    unique = len({item.prompt[: (block + 1) * BLOCK_SIZE] for item in items for block in _full_blocks(item)})
    with tempfile.TemporaryDirectory() as folder:
        write_random_llama(Path(folder), max_position_embeddings=CONTEXT)
        harness = Harness(EngineConfig(model=folder, socket_folder="", threads=compute_threads()), _silent)
        size = sum(group.bytes_per_block for group in harness.model.executable.layout.groups)
        everything = unique + sum(item.max_tokens // BLOCK_SIZE + 2 for item in items)
        quarter = unique // 4 * size
        endless, without, with_tier = (
            _run(harness, items, clients, pool, tier, telling(name))
            for name, pool, tier in (
                ("a cache without an end", everything * size, 0),
                ("a quarter", quarter, 0),
                ("a quarter and a tier", quarter, quarter),
            )
        )
    hits = [run.snapshot.prefix_hit_tokens for run in (endless, without, with_tier)]
    same = endless.digest == without.digest == with_tier.digest
    return Spared(hits[0] - hits[1], hits[0] - hits[2], with_tier.snapshot.host_loaded_blocks, same)


def _run(harness: Harness, items: Sequence[Item], clients: int, pool: int, tier: int, tell: Tell) -> RunResult:
    sizes: dict[str, Any] = {"kv_cache_memory": pool, "kv_offload_memory": tier, "max_num_seqs": MAX_NUM_SEQS}
    longest = max(len(item.prompt) + item.max_tokens for item in items)
    return harness.run(items, tell, clients=clients, max_model_len=longest, max_num_batched_tokens=2048, **sizes)


def _full_blocks(item: Item) -> Iterator[int]:
    return iter(range(len(item.prompt) // BLOCK_SIZE))


def _block(name: object, vocab: int) -> list[int]:
    draw = random.Random(repr(name))
    return [draw.randrange(vocab) for _ in range(BLOCK_SIZE)]


def _silent(stage: str, fraction: float) -> None:
    """Say nothing."""
