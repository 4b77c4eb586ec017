"""Which backend runs a model, and what the engine must know about the model beyond `Executable`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from octavo_engine.contract import BLOCK_SIZE
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.model.pooling import Pooling
from octavo_engine.worker.executable import Executable
from octavo_engine.worker.sizing import StartError, check_before_loading, memory_left

if TYPE_CHECKING:
    from octavo_kernels.cpu import Pool

Report = Callable[[str, float], None]
"""Called with a stage a person understands and how far it is, 0 to 1."""

SCRIPTED_SCHEME = "scripted://"


class LoadedModel(NamedTuple):
    """An executable, its cache not allocated yet, and what is true of it.

    `max_model_len` is the longest sequence the model was made for. `digest` names the weights and roots the prefix
    cache. `num_blocks` is the pool the model itself asks for (scripted), else empty. `pooling` makes its embeddings.
    """

    executable: Executable
    max_model_len: int
    digest: str
    dtype: str
    kv_dtype: str
    quantization: str
    backend: str
    device: str
    eos_token_ids: tuple[int, ...]
    num_blocks: tuple[int, ...] = ()
    pooling: Pooling = Pooling()


def load_model(config: EngineConfig, report: Report) -> LoadedModel:
    """Load `config.model`. Raises StartError with its remedy for what cannot be loaded or is not offered."""
    if config.tensor_parallel_size != 1:
        raise StartError("--tensor-parallel-size above 1 is not offered yet: use 1, and more replicas instead.")
    if config.device == "cuda":
        raise StartError("--device cuda is not offered yet: use --device cpu or auto.")
    try:
        load = _load_scripted if config.model.startswith(SCRIPTED_SCHEME) else _load_cpu
        return load(config, report)
    except (OSError, ValueError) as error:
        # Files that are missing or damaged, models and options that no backend here serves: the message says what.
        raise StartError(str(error)) from error
    except MemoryError as error:
        raise StartError(f"The model's weights do not fit into this machine's memory ({error}).") from error


def _load_scripted(config: EngineConfig, report: Report) -> LoadedModel:
    from octavo_engine.worker.backends.scripted import build_scripted

    report("reading the script", 0.0)
    executable = build_scripted(config.model)
    if config.block_size not in (BLOCK_SIZE, executable.layout.block_size):
        raise StartError(
            f"A scripted model's block size stands in its URI: write block_size={config.block_size} there."
        )
    return LoadedModel(
        executable=executable,
        max_model_len=executable.max_position,
        digest=hashlib.sha256(config.model.encode()).hexdigest(),
        dtype="none",
        kv_dtype="digest",
        quantization="none",
        backend="scripted",
        device="cpu",
        eos_token_ids=executable.eos_token_ids,
        num_blocks=() if config.kv_cache_memory else executable.num_blocks,
    )


def _start_pool(threads: int) -> Pool:
    from octavo_engine.worker.backends import cpu

    try:
        return cpu.start_pool(threads)
    except RuntimeError as error:
        if "OCTAVO_CPU_ISA" in str(error):
            # The message names the variants that this machine has.
            raise StartError(str(error)) from error
        raise StartError(
            f"{threads or 'The'} compute threads cannot be started ({error}): take fewer, or raise the limit of tasks."
        ) from error


def _load_cpu(config: EngineConfig, report: Report) -> LoadedModel:
    from octavo_engine.model.checkpoint import open_checkpoint
    from octavo_engine.model.digest import model_digest
    from octavo_engine.model.source import resolve
    from octavo_engine.worker.backends.cpu_precision import choose_precision

    path = resolve(config.model, report)
    checkpoint = open_checkpoint(path)
    precision = choose_precision(config.dtype, config.quantization, config.kv_cache_dtype, checkpoint.quantization)
    try:
        # Only now: it imports the kernels, which a wheel of the operator alone does not have.
        from octavo_engine.worker.backends.cpu import build_cpu, cpu_needs
    except ImportError as error:
        raise StartError(
            f"This installation has no CPU kernels ({error}): install a C++20 compiler (Debian: apt-get install g++) "
            "and run pip install --force-reinstall octavo[engine]."
        ) from error
    pool = _start_pool(config.threads)
    # From here on weights are read, which takes minutes for a large model: what can be refused is refused before.
    needs = cpu_needs(checkpoint, precision, config.block_size, config.max_model_len)
    check_before_loading(needs, config, memory_left())
    digest = model_digest(checkpoint.files, report)
    executable = build_cpu(
        checkpoint,
        digest,
        precision,
        pool,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        progress=report,
    )
    return LoadedModel(
        executable=executable,
        max_model_len=executable.max_position,
        digest=digest,
        dtype=precision.dtype,
        kv_dtype=precision.cache,
        quantization=precision.weights or checkpoint.quantization,
        backend="cpu",
        device="cpu",
        eos_token_ids=checkpoint.eos_token_ids,
        pooling=checkpoint.pooling,
    )
