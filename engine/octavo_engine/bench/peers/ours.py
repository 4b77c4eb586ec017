"""Our own engine as a contender: the whole loop in this process, as `octavo bench throughput` runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from octavo_engine.bench.harness import Harness
from octavo_engine.bench.peers.contender import Contender, Settings
from octavo_engine.bench.peers.model_files import ModelFiles
from octavo_engine.bench.peers.notes import OWN
from octavo_engine.bench.peers.point import BATCH, DECODE, MIXED, PREFILL_512, Timing
from octavo_engine.bench.workload import Item
from octavo_engine.ipc.config import EngineConfig

FILE: Final = "file"
Load = Callable[[EngineConfig], Harness]


class OwnEngine:
    """A harness that runs workloads."""

    def __init__(self, config: EngineConfig, load: Load) -> None:
        """Load the model."""
        self.harness = load(config)

    def describe(self) -> str:
        """Return what the engine chose where the configuration left it open."""
        chosen = self.harness.describe()
        names = ("dtype", "quantization", "kv-cache-dtype", "max-num-batched-tokens", "speculation")
        return " ".join(f"{name}={chosen[name]}" for name in names)

    def run(self, items: Sequence[Item]) -> Timing:
        """Run the items, all submitted at once. Raises BenchError."""
        run = self.harness.run(items)
        return Timing(
            seconds=run.seconds,
            prompt_tokens=run.prompt_tokens,
            output_tokens=run.output_tokens,
            decode_tokens=run.output_tokens - len(items),
            first_token_seconds=run.ttft[0],
        )

    def close(self) -> None:
        """Give the model's memory back."""
        self.harness.unload()


def configurations(
    config: EngineConfig, files: ModelFiles, settings: Settings, safetensors: bool
) -> dict[str, EngineConfig]:
    """Return our configurations by format: the file as it is, and of the safetensors bf16 and int8 if wanted."""
    base = msgspec.structs.replace(
        config,
        model=str(files.gguf),
        kv_cache_memory=settings.cache_gib * 2**30,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
    )
    found = {FILE: base}
    if safetensors:
        folder = str(files.safetensors)
        found["bf16"] = msgspec.structs.replace(base, model=folder, dtype="bfloat16", quantization="none")
        found["int8"] = msgspec.structs.replace(base, model=folder, quantization="int8")
    return found


def contenders(configs: dict[str, EngineConfig], load: Load) -> list[Contender]:
    """Return us: at every point with the file itself, at the mixed workload and the batch with the others."""
    everything = frozenset(point.name for point in (MIXED, BATCH, DECODE, PREFILL_512))
    batches = frozenset({MIXED.name, BATCH.name})
    return [
        Contender(
            f"{OWN}:{form}",
            f"Octavo, {form}",
            everything if form == FILE else batches,
            partial(OwnEngine, config, load),
        )
        for form, config in configs.items()
    ]
