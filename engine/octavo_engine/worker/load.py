"""Which backend runs a model, and what the engine must know about the model beyond `Executable`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from octavo_engine.contract import BLOCK_SIZE
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.model.pooling import Pooling
from octavo_engine.worker.device import gpu_batched_tokens, serves_on_gpu
from octavo_engine.worker.executable import Served
from octavo_engine.worker.sizing import StartError, check_before_loading, memory_left

if TYPE_CHECKING:
    import torch

    from octavo_engine.worker.gpu.communicator import Communicator
    from octavo_engine.worker.gpu.model import GpuModel
    from octavo_engine.worker.gpu.sharding import Shard
    from octavo_engine.worker.ranks.leader import Ranks
    from octavo_kernels.cpu import Pool

Report = Callable[[str, float], None]
"""Called with a stage a person understands and how far it is, 0 to 1."""

GiveUp = Callable[[Exception], None]
"""Called, on any thread, with the reason why this process must end."""

SCRIPTED_SCHEME = "scripted://"


class LoadedModel(NamedTuple):
    """An executable, its cache not allocated yet, and what is true of it.

    `executable` is an `Executable`, or the same as `gpu`. `max_model_len` is the longest sequence the model was made
    for. `digest` names the weights and roots the prefix cache. `num_blocks` is the pool the model itself asks for
    (scripted), else empty. `pooling` makes its embeddings.
    """

    executable: Served
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
    gpu: GpuModel | None = None
    """The GPU engine's model, which takes steps of another kind."""
    ranks: Ranks | None = None
    """The other ranks, where several devices share the model."""


def load_model(config: EngineConfig, report: Report, give_up: GiveUp | None = None) -> LoadedModel:
    """Load `config.model`. Raises StartError with its remedy for what cannot be loaded or is not offered.

    `give_up` ends this process with a reason, from any thread; without it no other ranks can be started.
    """
    scripted = config.model.startswith(SCRIPTED_SCHEME)
    gpu = not scripted and serves_on_gpu(config.device)
    if config.tensor_parallel_size != 1 and not gpu:
        raise StartError(
            "--tensor-parallel-size above 1 divides a model among GPUs: use --device cuda where there are some, or 1, "
            "and more replicas instead."
        )
    if gpu and config.speculation == "ngram":
        raise StartError("--speculation ngram is not offered on a GPU yet: use --speculation off or auto.")
    if gpu:
        return load_on_gpus(config, report, give_up)
    with _explained():
        return _load_scripted(config, report) if scripted else _load_cpu(config, report)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what loading raises into a StartError."""
    try:
        yield
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


def load_on_gpus(
    config: EngineConfig, report: Report, give_up: GiveUp | None = None, kind: Literal["cuda", "cpu"] = "cuda"
) -> LoadedModel:
    """Load rank 0's share, having started the other ranks if there are some. Raises StartError.

    kind: of the devices. On CPU tensors the kernels run in Triton's interpreter: for tests, and never offered.
    """
    import torch

    from octavo_engine.worker.gpu.sharding import Shard
    from octavo_engine.worker.ranks.leader import Ranks
    from octavo_engine.worker.ranks.meeting import join

    size = config.tensor_parallel_size
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    if size == 1:
        with _explained():
            return load_share(config, report, device)
    if give_up is None:
        raise StartError("--tensor-parallel-size above 1 is for serving: measure with octavo bench serve.")
    if kind == "cuda" and torch.cuda.device_count() < size:
        raise StartError(
            f"--tensor-parallel-size {size} needs {size} GPUs and {torch.cuda.device_count()} are here: use fewer, or "
            "in Kubernetes ask for as many nvidia.com/gpu."
        )
    started: list[Ranks] = []

    def start_and_join() -> Communicator:
        started.append(Ranks(config, give_up, device=kind))
        return join(config, Shard(0, size), device)

    with _explained():
        model = load_share(config, report, device, Shard(0, size), start_and_join)
    return model._replace(ranks=started[0])


def load_share(
    config: EngineConfig,
    report: Report,
    device: torch.device,
    shard: Shard | None = None,
    join: Callable[[], Communicator] | None = None,
) -> LoadedModel:
    """Load what one rank, by default the only one, holds of a model. `join` meets the others once that may be done.

    Raises UnsupportedModelError and FileNotFoundError with a sentence, and MemoryError.
    """
    from octavo_engine.model.checkpoint import open_checkpoint
    from octavo_engine.model.digest import model_digest
    from octavo_engine.model.source import resolve
    from octavo_engine.worker.gpu.communicator import ALONE
    from octavo_engine.worker.gpu.load import ModelSizes, Place, check_shares, load_gpu
    from octavo_engine.worker.gpu.precision import choose_gpu_precision
    from octavo_engine.worker.gpu.sharding import Shard
    from octavo_kernels.triton.targets import fp8_refusal, target_of_device

    checkpoint = open_checkpoint(resolve(config.model, report))
    refusal = fp8_refusal(target_of_device(device)) or ""
    precision = choose_gpu_precision(
        config.dtype, config.quantization, config.kv_cache_dtype, checkpoint.quantization, refusal
    )
    sizes = ModelSizes(config.block_size, config.max_model_len, gpu_batched_tokens(config), config.batch_invariant)
    shard = shard or Shard()
    check_shares(checkpoint.spec, precision, shard.size)
    place = Place(device, shard, ALONE if join is None else join())
    digest = model_digest(checkpoint.files, report) if shard.rank == 0 else ""
    model = load_gpu(checkpoint, precision, place, sizes, report)
    return LoadedModel(
        executable=model,
        max_model_len=model.max_position,
        digest=digest,
        dtype=precision.dtype,
        kv_dtype=precision.cache,
        quantization=precision.weights or checkpoint.quantization,
        backend="triton",
        device="cuda",
        eos_token_ids=checkpoint.eos_token_ids,
        pooling=checkpoint.pooling,
        gpu=model,
    )
