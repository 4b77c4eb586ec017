"""From a checkpoint to one rank's model on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from octavo_engine.model.spec import ModelSpec, UnsupportedModelError
from octavo_engine.worker.gpu.adapters import AdapterBank
from octavo_engine.worker.gpu.cache import GpuLayout
from octavo_engine.worker.gpu.communicator import ALONE, Communicator
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.precision import GROUP, GpuPrecision
from octavo_engine.worker.gpu.products import Products
from octavo_engine.worker.gpu.sharding import Shard, check_shards, shard_spec
from octavo_engine.worker.gpu.weights import DTYPES, ModelWeights, Progress, load_weights
from octavo_kernels.triton.configurations import for_target
from octavo_kernels.triton.targets import target_of_device

if TYPE_CHECKING:  # reading files takes more than numpy and torch, and what computes takes no more
    from octavo_engine.model.checkpoint import Checkpoint


class Place(NamedTuple):
    """Where a model is computed: a device, and this rank among those that share the model."""

    device: torch.device
    shard: Shard = Shard()
    communicator: Communicator = ALONE


class ModelSizes(NamedTuple):
    """What a model is loaded for.

    block_size: tokens of a KV block. max_position: the longest context that will be asked for, 0: the model's own.
    max_tokens: of one step. invariant: whether a row's bits may not depend on its company.
    """

    block_size: int = 16
    max_position: int = 0
    max_tokens: int = 2048
    invariant: bool = False


def load_gpu(
    checkpoint: Checkpoint, precision: GpuPrecision, place: Place, sizes: ModelSizes, progress: Progress
) -> GpuModel:
    """Load one rank's share of a checkpoint; its files are not needed afterwards.

    Raises UnsupportedModelError with a sentence for what is not served, and MemoryError if the device has no room.
    """
    spec = checkpoint.spec
    if sizes.max_position > spec.max_position:
        raise UnsupportedModelError(
            f"--max-model-len {sizes.max_position} is beyond the {spec.max_position} positions the model was trained "
            f"for; use at most {spec.max_position}."
        )
    check_shares(spec, precision, place.shard.size)
    try:
        weights = load_weights(checkpoint, precision, place.shard, place.device, progress)
    except torch.OutOfMemoryError as error:
        raise MemoryError("the device has no room for the weights") from error
    return assemble_gpu(spec, weights, precision, place, sizes)


def check_shares(spec: ModelSpec, precision: GpuPrecision, size: int) -> None:
    """Raise UnsupportedModelError unless `size` ranks can share the model at this precision."""
    grouped = precision.weights in ("int8", "int4", "")
    check_shards(spec, size, GROUP if grouped else 1)


def assemble_gpu(
    spec: ModelSpec, weights: ModelWeights, precision: GpuPrecision, place: Place, sizes: ModelSizes
) -> GpuModel:
    """Return the model over weights that are on the device. Raises UnsupportedModelError for what is not served."""
    try:
        configurations = for_target(target_of_device(place.device))
    except ValueError as error:
        raise UnsupportedModelError(str(error)) from error
    # Sums of products in the operands' type would lose what summing in float32 keeps.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    dtype = DTYPES[precision.dtype]
    layout = GpuLayout(shard_spec(spec, place.shard), sizes.block_size, precision.cache, place.device)
    return GpuModel(
        spec,
        weights,
        layout,
        Products(configurations, dtype, place.device, invariant=sizes.invariant),
        AdapterBank(spec, place.shard, dtype, place.device),
        shard=place.shard,
        communicator=place.communicator,
        max_position=sizes.max_position or spec.max_position,
        max_tokens=sizes.max_tokens,
    )
