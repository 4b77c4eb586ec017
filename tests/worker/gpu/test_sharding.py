"""What ranks hold of a model: together the whole, each in itself a model, and what does not divide is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.model.spec import (
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
    UnsupportedModelError,
)
from octavo_engine.worker.gpu.sharding import (
    Shard,
    check_shards,
    columns_of,
    rows_of,
    shard_spec,
    vocabulary_rows,
    vocabulary_width,
)

NORM = NormSpec(1e-6)


def model(heads=8, kv_heads=4, inner=96, head_dim=16, vocab=101, moe=None, bias=True):
    attention = AttentionSpec(heads, kv_heads, head_dim, RopeSpec(head_dim, 1e4), 0.25, bias, bias)
    layer = LayerSpec(attention, MLPSpec(inner, bias=bias, moe=moe), NORM, NORM)
    return ModelSpec("llama", vocab, 64, 256, (layer, layer), NORM, tied_embeddings=False)


def shapes(spec):
    """Of every matrix that is cut, and of some that are not."""
    attention, inner, hidden = spec.layers[1].attention, spec.layers[1].mlp.intermediate_size, spec.hidden_size
    features = {"q": attention.q_size, "k": attention.kv_size, "v": attention.kv_size, "gate": inner, "up": inner}
    found = {f"layers.1.{part}.weight": (rows, hidden) for part, rows in features.items()}
    found |= {f"layers.1.{part}.bias": (rows,) for part, rows in features.items()}
    found |= {"layers.1.o.weight": (hidden, attention.q_size), "layers.1.down.weight": (hidden, inner)}
    found |= {"layers.1.o.bias": (hidden,), "layers.1.down.bias": (hidden,)}
    found |= {"layers.1.experts.3.gate.weight": (inner, hidden), "layers.1.experts.3.down.weight": (hidden, inner)}
    return found | {"embedding.weight": (spec.vocab_size, hidden), "head.weight": (spec.vocab_size, hidden)}


def held(name, array, spec, shard):
    rows, columns = rows_of(name, spec, shard), columns_of(name, spec, shard)
    array = array if rows is None else array[rows]
    return array if columns is None else array[:, columns]


models = st.builds(
    model,
    heads=st.sampled_from([4, 8]),
    kv_heads=st.sampled_from([1, 2, 4]),
    inner=st.sampled_from([8, 96, 128]),
    head_dim=st.sampled_from([8, 32]),
    vocab=st.integers(1, 40),
    moe=st.sampled_from([None, MoESpec(4, 2)]),
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(models, st.sampled_from([1, 2, 4]))
def test_what_all_ranks_hold_is_the_whole_and_nothing_twice_but_shared_heads(spec, size):
    check_shards(spec, size)
    for name, shape in shapes(spec).items():
        whole = np.arange(np.prod(shape)).reshape(shape)
        parts = [held(name, whole, spec, Shard(rank, size)) for rank in range(size)]
        shared = max(1, size // spec.layers[0].attention.num_kv_heads) if name[9:11] in ("k.", "v.") else 1
        axis = 1 if columns_of(name, spec, Shard(0, size)) else 0
        assert (np.concatenate(parts[::shared], axis) == whole).all(), name
        for rank, part in enumerate(parts):
            assert (part == parts[rank // shared * shared]).all(), name


@settings(max_examples=40, derandomize=True, deadline=None)
@given(models, st.sampled_from([2, 4]))
def test_each_rank_is_a_model_of_the_sizes_it_holds(spec, size):
    for rank in range(size):
        shard = Shard(rank, size)
        part = shard_spec(spec, shard)
        assert (part.vocab_size, part.hidden_size) == (spec.vocab_size, spec.hidden_size)
        own = shapes(part)
        for name, shape in shapes(spec).items():
            if name in ("embedding.weight", "head.weight") or name.endswith(("o.bias", "down.bias")):
                continue
            assert held(name, np.zeros(shape), spec, shard).shape == own[name], name


@settings(max_examples=40, derandomize=True, deadline=None)
@given(models, st.sampled_from([2, 4]))
def test_a_rank_has_the_keys_that_its_queries_read(spec, size):
    whole = spec.layers[0].attention
    for rank in range(size):
        shard = Shard(rank, size)
        own = shard_spec(spec, shard).layers[0].attention
        queries = np.arange(whole.num_heads)[heads(rows_of("layers.0.q.weight", spec, shard), whole)]
        keys = np.arange(whole.num_kv_heads)[heads(rows_of("layers.0.k.weight", spec, shard), whole)]
        read = [keys[head // own.group_size] for head in range(own.num_heads)]
        assert read == [query // whole.group_size for query in queries]


def heads(rows, attention):
    return slice(rows.start // attention.head_dim, rows.stop // attention.head_dim)


def test_a_bias_behind_a_sum_is_added_once():
    spec = model()
    for name in ("layers.0.o.bias", "layers.1.down.bias"):
        assert [held(name, np.ones(64), spec, Shard(rank, 4)).sum() for rank in range(4)] == [64, 0, 0, 0]
    biases = [shard_spec(spec, Shard(rank, 2)).layers[0].attention.output_bias for rank in range(2)]
    assert biases == [True, False]


def test_norms_and_the_router_are_everybodys():
    spec = model(moe=MoESpec(4, 2))
    for name in ("layers.0.attention_norm.weight", "layers.0.q_norm.weight", "layers.0.router.weight"):
        assert rows_of(name, spec, Shard(1, 2)) is None
        assert columns_of(name, spec, Shard(1, 2)) is None


def test_one_rank_holds_everything():
    spec = model()
    assert shard_spec(spec, Shard()) is spec
    assert all(rows_of(name, spec, Shard()) is columns_of(name, spec, Shard()) is None for name in shapes(spec))


@pytest.mark.parametrize(
    ("vocab", "size", "expected"),
    [(10, 2, [5, 5]), (10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1, 0]), (1, 2, [1, 0]), (9, 1, [9])],
)
def test_a_vocabulary_that_does_not_divide_leaves_the_last_ranks_less(vocab, size, expected):
    rows = [vocabulary_rows(vocab, Shard(rank, size)) for rank in range(size)]
    assert [each.stop - each.start for each in rows] == expected
    assert max(expected) == vocabulary_width(vocab, size)


@pytest.mark.parametrize(
    ("spec", "size", "group", "use"),
    [
        (model(8, 4), 3, 1, "use 1, 2, 4 or 8."),
        (model(8, 4), 16, 1, "use 1, 2, 4 or 8."),
        (model(12, 4, inner=96), 6, 1, "use 1, 2, 4 or 12."),  # 6 ranks could not share 4 key/value heads
        (model(9, 3, inner=96), 2, 1, "use 1 or 3."),
        (model(4, 1, inner=96), 3, 1, "use 1, 2 or 4."),
        (model(8, 8, inner=90), 4, 1, "use 1 or 2."),
        (model(8, 4, inner=96), 2, 32, "use 1."),  # 48 features are one group and a half
        (model(8, 4, inner=128, head_dim=16), 8, 32, "use 1, 2 or 4."),
        (model(7, 7, inner=15), 2, 1, "use 1."),
    ],
)
def test_what_does_not_divide_is_refused_with_the_sizes_that_do(spec, size, group, use):
    with pytest.raises(UnsupportedModelError) as raised:
        check_shards(spec, size, group)
    text = str(raised.value)
    assert text.startswith(f"--tensor-parallel-size {size} ")
    assert text.endswith(use)
    assert text.count(". ") == 0


def test_layers_that_differ_must_all_divide():
    first = model(8, 4, inner=96)
    other = model(8, 2, inner=90).layers[0]
    mixed = dataclasses.replace(first, layers=(first.layers[0], other))
    check_shards(mixed, 2)
    with pytest.raises(UnsupportedModelError, match="2 or 4 key/value heads and a feed-forward size of 90 or 96"):
        check_shards(mixed, 4)


def test_the_sizes_of_the_models_in_the_acceptance_lines_divide():
    for heads_, kv_heads in ((4, 1), (8, 4), (8, 2)):
        for size in (2, 4):
            check_shards(model(heads_, kv_heads, inner=2048, head_dim=256), size, 32)
