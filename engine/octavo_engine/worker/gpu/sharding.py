"""What one of several ranks computes of a model (tensor parallelism), and which slices of its matrices it holds.

    q k v gate up    rows: a rank's own heads, its own part of the feed-forward; outputs stay apart
    o down           columns: what a rank puts in is its own; the outputs are parts of a sum over the ranks
    embedding head   rows of the vocabulary

(Shoeybi et al., "Megatron-LM", 2019, section 3.) Where there are fewer key/value heads than ranks, several ranks hold
the same one. An adapter's matrices are cut as the matrix it changes: B by its rows, A by its columns.
"""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from octavo_engine.model.spec import AttentionSpec, LayerSpec, ModelSpec, UnsupportedModelError

_QUERIES: Final = frozenset({"q"})
_KEYS: Final = frozenset({"k", "v"})
_INNER: Final = frozenset({"gate", "up"})
_SUMMED: Final = frozenset({"o", "down"})
_VOCABULARY: Final = frozenset({"embedding", "head"})


class Shard(NamedTuple):
    """One of `size` ranks, counted from 0."""

    rank: int = 0
    size: int = 1


def check_shards(spec: ModelSpec, size: int, group: int = 1) -> None:
    """Raise UnsupportedModelError, naming the sizes that would do, unless `size` ranks can share the model.

    group: input features of a matrix that are quantised together (1: none are); no group may be cut.
    """
    if _divides(spec, size, group):
        return
    most = max(layer.attention.num_heads for layer in spec.layers)
    sizes = [str(other) for other in range(1, most + 1) if _divides(spec, other, group)]
    together = f", whose weights are quantised in groups of {group}," if group > 1 else ""
    raise UnsupportedModelError(
        f"--tensor-parallel-size {size} does not divide this model{together} with {_described(spec)}: use {_or(sizes)}."
    )


def shard_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """Return what one rank computes: its heads and its part of every feed-forward. `check_shards` holds.

    The vocabulary stays whole; what is added to a sum (the bias of o) is rank 0's alone.
    """
    if shard.size == 1:
        return spec
    return dataclasses.replace(spec, layers=tuple(_layer(layer, shard) for layer in spec.layers))


def rows_of(name: str, spec: ModelSpec, shard: Shard) -> slice | None:
    """Return which rows (of a bias: which elements) of one of the whole model's tensors a rank holds; None: all.

    The biases of o and down are added once, by rank 0: the others hold none of them, an empty slice.
    """
    part, suffix = name.split(".")[-2:]
    if shard.size == 1:
        return None
    if part in _VOCABULARY:
        return vocabulary_rows(spec.vocab_size, shard)
    if part in _SUMMED and suffix == "bias":
        return slice(0, 0) if shard.rank else None
    return _features(part, name, spec, shard) if part in _QUERIES | _KEYS | _INNER else None


def columns_of(name: str, spec: ModelSpec, shard: Shard) -> slice | None:
    """Return which columns of one of the whole model's matrices a rank holds; None: all."""
    part, suffix = name.split(".")[-2:]
    if shard.size == 1 or part not in _SUMMED or suffix == "bias":
        return None
    return _features(part, name, spec, shard)


def vocabulary_width(vocab_size: int, size: int) -> int:
    """Return how many tokens a rank's part of the vocabulary has; the last parts may be shorter, or empty."""
    return -(-vocab_size // size)


def vocabulary_rows(vocab_size: int, shard: Shard) -> slice:
    """Return the tokens whose rows of the embedding and of the head a rank holds."""
    width = vocabulary_width(vocab_size, shard.size)
    return slice(min(vocab_size, shard.rank * width), min(vocab_size, (shard.rank + 1) * width))


def _features(part: str, name: str, spec: ModelSpec, shard: Shard) -> slice:
    layer = spec.layers[int(name.split(".")[1])]
    attention = layer.attention
    if part in _KEYS:
        heads = _kv_heads(attention, shard)
        return slice(heads.start * attention.head_dim, heads.stop * attention.head_dim)
    whole = attention.q_size if part in ("q", "o") else layer.mlp.intermediate_size
    width = whole // shard.size
    return slice(shard.rank * width, (shard.rank + 1) * width)


def _kv_heads(attention: AttentionSpec, shard: Shard) -> slice:
    """Return the key/value heads that a rank's query heads read: its own, or one that several ranks hold."""
    first = shard.rank * attention.num_kv_heads // shard.size
    return slice(first, first + max(1, attention.num_kv_heads // shard.size))


def _layer(layer: LayerSpec, shard: Shard) -> LayerSpec:
    attention, mlp = layer.attention, layer.mlp
    return dataclasses.replace(
        layer,
        attention=dataclasses.replace(
            attention,
            num_heads=attention.num_heads // shard.size,
            num_kv_heads=max(1, attention.num_kv_heads // shard.size),
            output_bias=attention.output_bias and shard.rank == 0,
        ),
        mlp=dataclasses.replace(mlp, intermediate_size=mlp.intermediate_size // shard.size),
    )


def _divides(spec: ModelSpec, size: int, group: int) -> bool:
    return size >= 1 and all(_divides_layer(layer, size, group) for layer in spec.layers)


def _divides_layer(layer: LayerSpec, size: int, group: int) -> bool:
    attention, inner = layer.attention, layer.mlp.intermediate_size
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if size == 1:
        return True
    if heads % size or inner % size or (kv_heads % size and size % kv_heads):
        return False
    return attention.q_size // size % group == 0 and inner // size % group == 0


def _described(spec: ModelSpec) -> str:
    """Say the sizes that are divided, as they differ from layer to layer."""
    heads, kv_heads, inner = zip(
        *((each.attention.num_heads, each.attention.num_kv_heads, each.mlp.intermediate_size) for each in spec.layers),
        strict=True,
    )
    return (
        f"{_or(_distinct(heads))} attention heads, {_or(_distinct(kv_heads))} key/value heads "
        f"and a feed-forward size of {_or(_distinct(inner))}"
    )


def _distinct(sizes: tuple[int, ...]) -> list[str]:
    return [str(size) for size in sorted(set(sizes))]


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
