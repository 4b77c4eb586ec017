"""What is refused before anything begins: a pool too small to start with, a request that never fits, a full queue."""

from __future__ import annotations

from octavo_engine.core.config import CacheGroup, Refusal, Request, SchedulerConfig
from octavo_engine.core.waiting import WaitingQueue


class CapacityError(ValueError):
    """The KV cache cannot hold one sequence of `max_model_len`; `largest` is the longest it can hold."""

    def __init__(self, max_model_len: int, largest: int) -> None:
        super().__init__(
            f"the KV cache cannot hold one sequence of --max-model-len {max_model_len}: lower it to {largest} or less, "
            "or give the KV cache more memory"
        )
        self.largest = largest


def peak_blocks(group: CacheGroup, num_tokens: int, config: SchedulerConfig) -> int:
    """Return the most blocks of `group` a sequence of `num_tokens` ever holds.

    Behind a window blocks are freed as soon as a step is committed, so a window group needs the window, one step's
    tokens, and a block for not being aligned; contiguous allocation frees nothing before the end.
    """
    blocks = -(-num_tokens // config.block_size)
    if not group.window or config.kv_allocation == "contiguous":
        return blocks
    return min(blocks, -(-(group.window + config.max_num_batched_tokens) // config.block_size) + 1)


def fits(num_tokens: int, config: SchedulerConfig) -> bool:
    """Say whether the empty cache holds one sequence of `num_tokens`."""
    return all(peak_blocks(group, num_tokens, config) <= group.num_blocks for group in config.groups)


def largest_model_len(config: SchedulerConfig) -> int:
    """Return the longest sequence, at most `max_model_len`, that the empty cache holds."""
    if fits(config.max_model_len, config):
        return config.max_model_len
    low, high = 0, config.max_model_len
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, config) else (low, middle)
    return low


def check_start(config: SchedulerConfig) -> None:
    """Raise CapacityError or ValueError, each with its remedy, if the engine cannot start with `config`."""
    if not config.groups:
        raise ValueError("the model has no KV group; the scheduler needs at least one")
    if config.max_model_len < 2 or config.max_num_seqs < 1 or config.block_size < 1:
        raise ValueError("--max-model-len must be at least 2, --max-num-seqs and the block size at least 1")
    if any(group.host_places for group in config.groups) and (
        config.kv_allocation == "contiguous" or not config.prefix_sharing
    ):
        raise ValueError(
            "--kv-offload-memory keeps what a shared prefix may find again: use it with --kv-allocation paged and "
            "without --no-prefix-sharing"
        )
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ValueError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is less than --max-num-seqs "
            f"{config.max_num_seqs}: a step must have room for one token of every sequence; raise the first or lower "
            "the second"
        )
    largest = largest_model_len(config)
    if largest < config.max_model_len:
        raise CapacityError(config.max_model_len, largest)


def refuse(request: Request, waiting: WaitingQueue, config: SchedulerConfig) -> Refusal | None:
    """Say why `request` is not taken in, if it is not.

    The bound on waiting tokens never refuses the first in an empty queue: a long prompt would be refused for ever.
    """
    generates = not request.pooled
    max_tokens = request.stop.max_tokens
    if not request.prompt or not request.sequences or (max_tokens < 1 if generates else max_tokens != 0):
        raise ValueError(
            "a request needs a prompt, at least one choice and max_tokens of at least 1, or of 0 if it is pooled"
        )
    length = len(request.prompt)
    if length + generates > config.max_model_len or not fits(length + generates, config):
        room = ", which must leave room for at least one generated token" if generates else ""
        return Refusal(
            "never_fits",
            f"the prompt has {length} tokens and this model's context is {config.max_model_len}{room}; shorten the "
            "prompt",
        )
    count = len(request.sequences)
    if config.max_queue_requests and len(waiting) + count > config.max_queue_requests:
        return Refusal("queue_full", f"{len(waiting)} sequences are waiting already; retry later")
    tokens = length * count
    if config.max_queue_tokens and waiting.num_tokens and waiting.num_tokens + tokens > config.max_queue_tokens:
        return Refusal("queue_full", f"{waiting.num_tokens} prompt tokens are waiting already; retry later")
    return None
