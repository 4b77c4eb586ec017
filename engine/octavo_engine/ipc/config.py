"""What the API process tells the engine process at its start: one struct, sent over its standard input.

Nothing secret is in it, and nothing of it stands in the process's arguments. 0 or "auto" leaves a choice to the
engine, which answers what it chose in `Loaded`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DType = Literal["auto", "bfloat16", "float16", "float32"]
KVCacheDType = Literal["auto", "bfloat16", "float16", "float32", "int8", "fp8"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
Device = Literal["auto", "cpu", "cuda"]
SchedulerKind = Literal["continuous", "static"]
Speculation = Literal["auto", "ngram", "off"]
KVAllocation = Literal["paged", "contiguous"]


class EngineConfig(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One engine process.

    `model` is a local path (GGUF file or safetensors folder) or a `scripted://` URI: downloads are done by the API
    process. `socket_folder` is the folder of the ZeroMQ pipes. `kv_cache_memory` is in bytes.
    """

    model: str
    socket_folder: str
    device: Device = "auto"
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 0
    """0: 256, or less where a step holds fewer tokens: it needs room for one of every sequence."""
    max_num_batched_tokens: int = 0
    block_size: int = 16
    kv_cache_memory: int = 0
    kv_cache_dtype: KVCacheDType = "auto"
    kv_offload_memory: int = 0
    """Bytes of host memory for blocks that the cache evicts; 0: they are forgotten."""
    scheduler: SchedulerKind = "continuous"
    kv_allocation: KVAllocation = "paged"
    prefix_sharing: bool = True
    speculation: Speculation = "auto"
    """ngram: draft what followed the same tokens earlier in the sequence, where that pays; auto: so, but for a scripted
    model, which states what a token takes."""
    num_speculative_tokens: int = 8
    """Drafts of one sequence in one step at the most."""
    tensor_parallel_size: int = 1
    batch_invariant: bool = False
    """On a GPU: a request's tokens do not depend on what runs beside it. On a CPU they never do."""
    enforce_eager: bool = False
    """On a GPU: decode steps are launched kernel by kernel, not replayed from captured graphs."""
    max_queue_requests: int = 1024
    """Sequences that may wait; one more is refused (429)."""
    max_queue_tokens: int = 1_048_576
    """Prompt tokens that may wait; a prompt is accepted whatever its length while nobody waits."""
    threads: int = 0
    """Compute threads; 0: as many as the cgroup's CPU quota and the affinity mask give."""
    plans_in_flight: Literal[0, 1, 2] = 0
    """0: two on a GPU, where scheduling overlaps the step; one on a CPU, where a step outlasts scheduling by far and a
    second plan in flight would make every new request wait one step longer."""
    step_timeout_seconds: float = 60.0
    """A step that takes longer hangs: the engine gives up with `Failed`, so that it is started again."""
    vocabulary: str = ""
    """The file in which the model's tokens will be (`vocabulary.py`) when the first request with a grammar comes;
    "": none does."""
    parent_pid: int = 0
    """The process the engine must not outlive; set by `launch_engine`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
