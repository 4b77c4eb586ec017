"""A checkpoint's weights as the CPU kernels want them: matrices packed, vectors as float32.

q, k and v are one product, gate and up another. Packed matrices are kept on disk (`packed_file`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.files import cache_root
from octavo_engine.model.qtensor import QTensor
from octavo_engine.model.spec import LayerSpec, ModelSpec, NormSpec, UnsupportedModelError
from octavo_engine.worker.backends.cpu_precision import Precision
from octavo_engine.worker.backends.packed_file import Contents, open_packed, place_entries, write_packed
from octavo_kernels.cpu import Pool, Weight, pack_into, plan_packing
from octavo_kernels.cpu.weights import PACKING_VERSION, aligned_bytes

Progress = Callable[[str, float], None]
Vector = NDArray[np.float32]

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A packed matrix and the checkpoint's tensors it is made of, below each other.

    kind: what they are stored in, or F32 if they are dequantised first. target: what the packer makes of that.
    """

    name: str
    tensors: tuple[str, ...]
    gate_up: bool
    kind: str
    target: str
    rows: int
    columns: int


def load_matrices(
    checkpoint: Checkpoint, digest: str, precision: Precision, pool: Pool, progress: Progress
) -> dict[str, Weight]:
    """Return the model's matrices by name: `head`, `embedding` (if not tied), `layers.N.{qkv,o,gate_up,down}`.
    A mixture has `layers.N.router` and `layers.N.experts.E.{gate_up,down}`.

    They are read from the cache's `packed` folder; what is not there is packed into it, or into memory if it cannot
    be written. Raises UnsupportedModelError if a tensor has not the shape that the configuration says.
    """
    sources = _sources(checkpoint, precision)
    contents = _contents(digest, sources)
    data = _packed_data(checkpoint, contents, sources, pool, progress)
    return {
        entry.name: Weight(
            entry.layout,
            entry.n,
            entry.k,
            entry.gate_up,
            data[entry.offset : entry.offset + entry.nbytes],
        )
        for entry in contents.entries
    }


def packed_bytes(checkpoint: Checkpoint, precision: Precision) -> int:
    """Return the bytes that `load_matrices` would take, from what the header says. Raises UnsupportedModelError."""
    return _contents("", _sources(checkpoint, precision)).nbytes


def _sources(checkpoint: Checkpoint, precision: Precision) -> list[Source]:
    return [_source(checkpoint, precision, *matrix) for matrix in _matrices(checkpoint.spec)]


def _packed_data(
    checkpoint: Checkpoint, contents: Contents, sources: list[Source], pool: Pool, progress: Progress
) -> NDArray[np.uint8]:
    name = hashlib.sha256(json.dumps(contents.description()).encode()).hexdigest()[:32]

    def fill(data: NDArray[np.uint8]) -> None:
        for index, (source, entry) in enumerate(zip(sources, contents.entries, strict=True)):
            progress("packing weights", index / len(sources))
            _pack(pool, checkpoint, source, data[entry.offset : entry.offset + entry.nbytes])

    try:
        path = cache_root() / "packed" / f"{name}-{PACKING_VERSION}.packed"
        data = open_packed(path, contents)
        return write_packed(path, contents, fill) if data is None else data
    except OSError as error:
        _log.warning("Packed weights are not kept (%s): every start packs them again, into memory of its own.", error)
    data = aligned_bytes(contents.nbytes)
    fill(data)
    return data


def _matrices(spec: ModelSpec) -> Iterator[tuple[str, tuple[str, ...], tuple[int, int]]]:
    """Yield (name, tensors, shape of the whole) of every matrix."""
    hidden = spec.hidden_size
    yield "head", ("embedding.weight" if spec.tied_embeddings else "head.weight",), (spec.vocab_size, hidden)
    if not spec.tied_embeddings:
        yield "embedding", ("embedding.weight",), (spec.vocab_size, hidden)
    for index, layer in enumerate(spec.layers):
        attention, inner = layer.attention, layer.mlp.intermediate_size
        at = f"layers.{index}"
        qkv = tuple(f"{at}.{part}.weight" for part in "qkv")
        yield f"{at}.qkv", qkv, (attention.q_size + 2 * attention.kv_size, hidden)
        yield f"{at}.o", (f"{at}.o.weight",), (hidden, attention.q_size)
        if layer.mlp.moe is not None:
            yield f"{at}.router", (f"{at}.router.weight",), (layer.mlp.moe.num_experts, hidden)
        for part in _feed_forwards(at, layer):
            yield f"{part}.gate_up", (f"{part}.gate.weight", f"{part}.up.weight"), (2 * inner, hidden)
            yield f"{part}.down", (f"{part}.down.weight",), (hidden, inner)


def _feed_forwards(at: str, layer: LayerSpec) -> list[str]:
    """Return the names of a layer's gated feed-forwards: its own, or its experts'."""
    moe = layer.mlp.moe
    return [at] if moe is None else [f"{at}.experts.{expert}" for expert in range(moe.num_experts)]


def _source(
    checkpoint: Checkpoint, precision: Precision, name: str, tensors: tuple[str, ...], shape: tuple[int, int]
) -> Source:
    stored = [checkpoint.describe(tensor) for tensor in tensors]
    rows, columns = sum(each.shape[0] for each in stored), shape[1]
    if rows != shape[0] or any(each.shape[1:] != (columns,) for each in stored):
        raise UnsupportedModelError(
            f"The weights {' and '.join(tensors)} have {rows} rows where the configuration says {shape[0]} of "
            f"{columns}; the model is damaged, fetch it again."
        )
    delicate = name in ("head", "embedding")
    targets = {precision.target(each.kind, columns, delicate=delicate) for each in stored}
    if name.endswith(".router"):
        # Which experts a token has may hang on the last bit, and a router is small.
        targets = {"F32"}
    kinds = {each.kind for each in stored}
    # Parts stored differently (Q4_K_M keeps some v in Q6_K) become int8 together: one product has one layout.
    target = targets.pop() if len(targets) == 1 and (len(kinds) == 1 or "" not in targets) else "INT8"
    kind = kinds.pop() if len(kinds) == 1 else "F32"
    if target == kind or target == "" or kind in ("F32", "F16", "BF16"):
        return Source(name, tensors, name.endswith("gate_up"), kind, "" if target == kind else target, rows, columns)
    return Source(name, tensors, name.endswith("gate_up"), "F32", target, rows, columns)


def _contents(digest: str, sources: list[Source]) -> Contents:
    sizes = []
    for source in sources:
        layout, nbytes = plan_packing(source.kind, source.rows, source.columns, source.target)
        sizes.append((source.name, layout, source.rows, source.columns, source.gate_up, nbytes))
    made = hashlib.sha256(json.dumps(sources).encode()).hexdigest()
    return Contents(digest, made, place_entries(sizes))


def _pack(pool: Pool, checkpoint: Checkpoint, source: Source, out: NDArray[np.uint8]) -> None:
    planes = []
    for name in source.tensors:
        tensor = checkpoint.tensor(name)
        plane = tensor.planes[0] if tensor.kind == source.kind else tensor.dequantize()
        planes.append(np.ascontiguousarray(plane).view(np.uint8).reshape(plane.shape[0], -1))
    pack_into(pool, source.kind, planes, source.columns, source.target, source.gate_up, out)


class Vectors(NamedTuple):
    """float32 vectors of one layer; None where the layer has none."""

    attention_norm: Vector
    qkv_bias: Vector | None
    q_norm: Vector | None
    k_norm: Vector | None
    output_bias: Vector | None
    post_attention_norm: Vector | None
    mlp_norm: Vector
    gate_up_bias: Vector | None
    down_bias: Vector | None
    post_mlp_norm: Vector | None


def load_vectors(checkpoint: Checkpoint, index: int, layer: LayerSpec) -> Vectors:
    """Return a layer's norms (offsets added) and biases, copied out of the file."""
    at, attention, mlp = f"layers.{index}", layer.attention, layer.mlp

    def norm(spec: NormSpec | None, part: str) -> Vector | None:
        return None if spec is None else load_norm(checkpoint, spec, f"{at}.{part}.weight")

    def bias(present: bool, *parts: str) -> Vector | None:
        return load_vector(*(checkpoint.tensor(f"{at}.{part}.bias") for part in parts)) if present else None

    return Vectors(
        attention_norm=load_norm(checkpoint, layer.attention_norm, f"{at}.attention_norm.weight"),
        qkv_bias=bias(attention.qkv_bias, "q", "k", "v"),
        q_norm=norm(attention.qk_norm, "q_norm"),
        k_norm=norm(attention.qk_norm, "k_norm"),
        output_bias=bias(attention.output_bias, "o"),
        post_attention_norm=norm(layer.post_attention_norm, "post_attention_norm"),
        mlp_norm=load_norm(checkpoint, layer.mlp_norm, f"{at}.mlp_norm.weight"),
        gate_up_bias=bias(mlp.bias, "gate", "up"),
        down_bias=bias(mlp.bias, "down"),
        post_mlp_norm=norm(layer.post_mlp_norm, "post_mlp_norm"),
    )


def load_norm(checkpoint: Checkpoint, spec: NormSpec, name: str) -> Vector:
    """Return a norm's factors: what is stored, plus the architecture's offset."""
    stored = load_vector(checkpoint.tensor(name))
    return stored if spec.offset == 0.0 else stored + np.float32(spec.offset)


def load_vector(*parts: QTensor) -> Vector:
    """Return vectors joined, in memory of their own: the file may be closed."""
    return np.concatenate([part.dequantize().reshape(-1) for part in parts])
