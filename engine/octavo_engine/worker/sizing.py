"""How large the KV pool is, how long a sequence may get, how many tokens a step takes. Bad input is a StartError."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import psutil

from octavo_engine.core.config import CacheGroup, SchedulerConfig
from octavo_engine.core.limits import check_start, largest_model_len
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.cgroup import memory_limit
from octavo_engine.worker.executable import Executable, KVGroup, ModelStep, Needs

DEFAULT_POOL_SHARE: Final = 0.5
"""Of the memory that is left once the weights are loaded: the rest is for activations and the API process."""
DEFAULT_POOL_BYTES: Final = 4 << 30
"""The default pool's largest size on a CPU: more is the operator's or the user's decision, by flag."""
MIN_POOL_BYTES: Final = 64 << 20
DEFAULT_POOL_TOKENS: Final = 256 * 256
"""What a small model's default pool holds: 256 sequences of 256 tokens. Touching more only delays the start."""

MIN_BATCHED_TOKENS: Final = 64
MEASURED_TOKENS: Final = 256
MAX_BATCHED_TOKENS: Final = 2048
STEP_SECONDS: Final = 0.150


class StartError(Exception):
    """The engine cannot start as it was asked to; the message says what to change."""


class ContextError(StartError):
    """The context is longer than the model was made for, or than the cache holds; `fits` tokens would do."""

    def __init__(self, message: str, fits: int) -> None:
        """Say what to change."""
        super().__init__(message)
        self.fits = fits


class PoolError(StartError):
    """The KV pool that is asked for is larger than the memory that is left."""


def memory_left() -> int:
    """Return the bytes this process may still take: what the machine has, or what the container's limit leaves."""
    left = psutil.virtual_memory().available
    limit = memory_limit()
    return left if limit is None else max(0, min(left, limit.limit - limit.used))


def check_before_loading(needs: Needs, config: EngineConfig, left: int) -> None:
    """Raise StartError, before weights are read, for what could not be served once they are.

    left: bytes of memory. What is measured behind the weights (tokens of a step) is taken as small as it can be: what
    passes here may still be refused then.
    """
    after = left - needs.weight_bytes - needs.table_bytes
    if after < 0:
        longest = min(config.max_model_len or needs.max_position, needs.max_position)
        raise StartError(
            f"The model's weights take {needs.weight_bytes / 2**30:.2f}Gi, and the rotary factors of {longest} tokens "
            f"{needs.table_bytes / 2**30:.2f}Gi; {left / 2**30:.2f}Gi of memory are left here: raise the memory limit, "
            "or take less with --quantization int8 or int4, or a smaller --max-model-len."
        )
    counts = choose_blocks(config.kv_cache_memory, after, needs.groups, config.block_size)
    behind = after - sum(count * group.bytes_per_block for count, group in zip(counts, needs.groups, strict=True))
    cache = SchedulerConfig(
        groups=tuple(
            CacheGroup(count, group.window, places)
            for count, group, places in zip(
                counts, needs.groups, host_places(config.kv_offload_memory, behind, needs.groups), strict=True
            )
        ),
        max_model_len=needs.max_position,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs or 1,
        max_num_batched_tokens=config.max_num_batched_tokens or max(MIN_BATCHED_TOKENS, config.max_num_seqs),
        kv_allocation=config.kv_allocation,
        prefix_sharing=config.prefix_sharing,
    )
    longest = model_len(config.max_model_len, needs.max_position, cache)
    try:
        check_start(dataclasses.replace(cache, max_model_len=longest))
    except ValueError as error:
        raise StartError(f"{error}.") from error


def choose_blocks(requested: int, left: int, groups: Sequence[KVGroup], block_size: int) -> tuple[int, ...]:
    """Return the blocks of each group: of `requested` bytes, or for 0 of what `left` bytes allow. Raises StartError."""
    bytes_per_token = sum(group.bytes_per_block for group in groups) // block_size
    return pool_blocks(pool_bytes(requested, left, bytes_per_token), groups)


def device_blocks(requested: int, left: int, groups: Sequence[KVGroup]) -> tuple[int, ...]:
    """Return the blocks of each group on a GPU: of `requested` bytes exactly, or for 0 of all `left` bytes.

    Nobody else is to have a GPU's memory: what is not the cache's is idle. Raises StartError.
    """
    if requested > left:
        raise PoolError(
            f"--kv-cache-memory {requested / 2**30:.2f}Gi does not fit: {left / 2**30:.2f}Gi of the GPU are left "
            "beside the weights and the largest step. Ask for less, or lower --max-num-batched-tokens."
        )
    return pool_blocks(requested or left, groups)


def pool_bytes(requested: int, left: int, bytes_per_token: int) -> int:
    """Return the KV pool's size for a flag (0: none given), the bytes left on this machine, and those a token takes."""
    if requested > left:
        raise PoolError(
            f"--kv-cache-memory {requested / 2**30:.2f}Gi does not fit: {left / 2**30:.2f}Gi are left here after the "
            "weights. Ask for less, or raise the memory limit."
        )
    return requested or min(
        int(left * DEFAULT_POOL_SHARE), DEFAULT_POOL_BYTES, max(DEFAULT_POOL_TOKENS * bytes_per_token, MIN_POOL_BYTES)
    )


def pool_blocks(total_bytes: int, groups: Sequence[KVGroup]) -> tuple[int, ...]:
    """Divide the pool among the groups, one block of each at a time. Raises StartError if it holds none."""
    bytes_per_block = sum(group.bytes_per_block for group in groups)
    count = total_bytes // bytes_per_block
    if not count:
        raise StartError(
            f"The KV cache memory of {total_bytes} bytes does not hold one block: raise --kv-cache-memory to at least "
            f"{bytes_per_block} bytes."
        )
    return (count,) * len(groups)


def host_places(total_bytes: int, left: int, groups: Sequence[KVGroup]) -> tuple[int, ...]:
    """Return the host tier's size in blocks of each group (0: none asked for), of the bytes left on this machine."""
    if not total_bytes:
        return (0,) * len(groups)
    bytes_per_block = sum(group.bytes_per_block for group in groups)
    if total_bytes > left:
        raise StartError(
            f"--kv-offload-memory {total_bytes / 2**30:.2f}Gi does not fit: {left / 2**30:.2f}Gi are left here after "
            "the weights and the KV cache. Ask for less, or raise the memory limit."
        )
    if total_bytes < bytes_per_block:
        raise StartError(
            f"--kv-offload-memory {total_bytes} does not hold one block: give it at least {bytes_per_block} bytes."
        )
    return (total_bytes // bytes_per_block,) * len(groups)


def model_len(requested: int, model_max_len: int, config: SchedulerConfig) -> int:
    """Return the longest sequence to serve: as requested, or for 0 what the model allows and the cache holds.

    `config` gives the cache. Raises StartError if the model, or the cache, cannot take the requested length.
    """
    if requested > model_max_len:
        raise ContextError(
            f"--max-model-len {requested} is more than the model was made for: use {model_max_len} or less.",
            model_max_len,
        )
    wanted = requested or model_max_len
    fits = largest_model_len(dataclasses.replace(config, max_model_len=wanted))
    if fits < (wanted if requested else 2):
        raise ContextError(
            f"The KV cache cannot hold one sequence of --max-model-len {wanted}: it holds {fits} tokens. "
            f"Use --max-model-len {fits} or less, or raise --kv-cache-memory.",
            fits,
        )
    return fits


def measured_batched_tokens(seconds_of: Callable[[int], float]) -> int:
    """Return how many tokens a step of 150 ms holds, between 64 and 2048, from `seconds_of(tokens)` measured here.

    Two measurements make a line, on which the answer lies; rounded down to whole blocks of 16. Starting is not held up
    by steps of the answer's own size.
    """
    base = seconds_of(MIN_BATCHED_TOKENS)
    if base >= STEP_SECONDS:
        return MIN_BATCHED_TOKENS
    slope = (seconds_of(MEASURED_TOKENS) - base) / (MEASURED_TOKENS - MIN_BATCHED_TOKENS)
    if slope * (MAX_BATCHED_TOKENS - MIN_BATCHED_TOKENS) <= STEP_SECONDS - base:
        return MAX_BATCHED_TOKENS
    return (MIN_BATCHED_TOKENS + round((STEP_SECONDS - base) / slope)) // 16 * 16


def step_seconds(model: Executable, num_blocks: Sequence[int], tokens: int) -> float:
    """Measure one prefill step of `tokens` tokens, in the pool's first blocks (nobody owns them yet).

    More tokens than the pool or the model holds positions for are measured as several rows. The better of two runs
    counts: the first also pays for what is made once.
    """
    size = model.layout.block_size
    length = min(model.max_position, min(num_blocks) * size)
    lengths = np.array([min(length, tokens - start) for start in range(0, tokens, length)], dtype=np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    blocks = np.tile(np.arange(-(-int(lengths[0]) // size), dtype=np.int32), (lengths.size, 1))
    groups = range(len(model.layout.groups))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    step = ModelStep(
        tokens=np.zeros(tokens, dtype=np.int32),
        positions=positions,
        row_offsets=offsets,
        context_lengths=lengths,
        block_tables=tuple(blocks for _ in groups),
        slots=tuple(positions.astype(np.int64) for _ in groups),
        logit_tokens=offsets[1:] - 1,
        adapters=np.full(lengths.size, -1, dtype=np.int32),
    )
    return min(_seconds(model, step) for _ in range(2))


def _seconds(model: Executable, step: ModelStep) -> float:
    started = time.perf_counter()
    plan = model.plan(step)
    model.logits(plan, model.forward(plan, model.embed(plan)))
    return time.perf_counter() - started
