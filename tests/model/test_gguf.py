"""GGUF files: metadata, stored kinds, and the order of rotated rows."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.gguf import half_rotation_rows
from octavo_engine.model.qtensor import QTensor
from octavo_engine.model.spec import UnsupportedModelError
from tests.model.building import build
from tests.model.conftest import write_random_llama
from tests.model.stepping import Part, run

_NAMES = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def write_gguf(folder: Path, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any) -> None:
    """Convert a Hugging Face folder as llama.cpp's converter does: q and k rows interleaved, matrices in `kind`."""
    source = open_checkpoint(folder)
    spec = source.spec
    attention = spec.layers[0].attention
    writer = GGUFWriter(path, extra.get("architecture", "llama"))
    writer.add_block_count(len(spec.layers))
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.layers[0].mlp.intermediate_size)
    writer.add_head_count(attention.num_heads)
    writer.add_head_count_kv(attention.num_kv_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_rope_freq_base(attention.rope.theta)
    writer.add_rope_dimension_count(attention.rope.dim)
    writer.add_layer_norm_rms_eps(spec.final_norm.eps)
    writer.add_eos_token_id(7)

    def add(name: str, ours: str, heads: int = 0) -> None:
        values = source.tensor(ours).dequantize()
        if heads:
            halves = values.reshape(heads, 2, attention.head_dim // 2, -1)
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        if values.ndim == 2 and kind != GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    add("token_embd.weight", "embedding.weight")
    add("output_norm.weight", "final_norm.weight")
    if not spec.tied_embeddings:
        add("output.weight", "head.weight")
    for layer in range(len(spec.layers)):
        for ours, theirs in _NAMES.items():
            heads = {"q": attention.num_heads, "k": attention.num_kv_heads}.get(ours, 0)
            add(f"blk.{layer}.{theirs}.weight", f"layers.{layer}.{ours}.weight", heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [False, True])
def test_a_converted_model_computes_the_same_bits(tied: bool, tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "hf", tie_word_embeddings=tied)
    write_gguf(folder, tmp_path / "model.gguf")
    results = []
    for source in (folder, tmp_path / "model.gguf"):
        model = build(source)
        model.layout.allocate([3])
        results.append(run(model, Part([2, 0, 1], list(range(40)), 0, every_position=True)))
    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_stored_kinds_are_close_to_what_was_stored(kind: str, tmp_path: Path) -> None:
    folder = write_random_llama(
        tmp_path / "hf", hidden_size=64, intermediate_size=96, head_dim=32, num_attention_heads=2
    )
    write_gguf(folder, tmp_path / "model.gguf", GGMLQuantizationType[kind])
    exact, stored = open_checkpoint(folder), open_checkpoint(tmp_path / "model.gguf")
    assert stored.quantization == kind
    for name in ("layers.1.q.weight", "layers.0.down.weight", "embedding.weight"):
        tensor = stored.tensor(name)
        assert tensor.kind == kind
        difference = tensor.dequantize() - exact.tensor(name).dequantize()
        assert difference.shape == tensor.shape
        assert np.abs(difference).max() < {"F16": 0.001, "BF16": 0.01, "Q8_0": 0.02}.get(kind, 0.25)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Q9_X"):
        QTensor("Q9_X", (1, 32), (np.zeros((1, 32), np.uint8),)).dequantize()


def test_half_rotation_rows_undo_the_converter() -> None:
    stored = np.arange(12).reshape(2, 2, 3).swapaxes(1, 2).reshape(-1)
    assert stored[half_rotation_rows(2, 6)].tolist() == list(range(12))


def test_the_bundled_model_is_what_its_card_says(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    spec, attention = checkpoint.spec, checkpoint.spec.layers[0].attention
    assert (spec.vocab_size, spec.hidden_size, len(spec.layers), spec.max_position) == (49152, 576, 30, 8192)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (9, 3, 64)
    assert (attention.rope.theta, spec.tied_embeddings) == (100000.0, True)
    assert (checkpoint.quantization, checkpoint.eos_token_ids) == ("Q4_1", (2,))


def test_a_file_that_was_cut_short_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    for size in (0, 3, 1000, 5_000_000):
        cut = tmp_path / f"{size}.gguf"
        with smollm2_path.open("rb") as stream:
            cut.write_bytes(stream.read(size))
        with pytest.raises(UnsupportedModelError, match=r"is not a GGUF file|download (it|the model) again"):
            open_checkpoint(cut)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "hf")
    write_gguf(folder, tmp_path / "model.gguf", architecture="rwkv6")
    with pytest.raises(UnsupportedModelError, match="rwkv6"):
        open_checkpoint(tmp_path / "model.gguf")


def write_metadata(path: Path, **keys: int | str) -> Path:
    """Write a GGUF file without tensors; keys have __ for a dot."""
    writer = GGUFWriter(path, "", use_temp_file=False)
    writer.kv_data[0].clear()
    for key, value in keys.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key.replace("__", "."), value)  # type: ignore[arg-type]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"general__architecture": "clip"}, "GGUF architecture 'clip' is not served yet; the served ones are llama, "),
        ({"clip__block_count": 1}, "names no architecture; give a model of llama, "),
        ({"general__architecture": "llama", "general__alignment": 0}, "where its tensors begin: download"),
        ({"general__architecture": "llama", "general__alignment": "x"}, "where its tensors begin: download"),
    ],
)
def test_a_file_that_is_no_language_model_says_what_it_is(
    keys: dict[str, int | str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        open_checkpoint(write_metadata(tmp_path / "model.gguf", **keys))


def test_metadata_of_nested_arrays_is_damaged(tmp_path: Path) -> None:
    """Arrays of one array each, deeper than a reader that calls itself can go."""
    array, deep = 9, 100_000
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"x", array)
    path = tmp_path / "model.gguf"
    path.write_bytes(head + struct.pack("<IQ", array, 1) * deep)
    with pytest.raises(UnsupportedModelError, match="damaged in its metadata"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("attention.head_count", 0, r"sizes must be 1 to 2147483647 \(heads of layer 0 0"),
        ("block_count", 1 << 30, "states 1073741824 layers, and 10000 are the most there can be"),
        ("attention.key_length", 1 << 30, "states 1073741824 head dimensions"),
        ("rope.dimension_count", 1 << 30, "states 1073741824 rotated dimensions"),
        ("context_length", 0, r"sizes must be 1 to 2147483647 \(context 0\)"),
        ("feed_forward_length", 0, r"sizes must be 1 to 2147483647 \(feed-forward size of layer 0 0"),
    ],
)
def test_metadata_that_no_model_has_is_told_in_a_sentence(key: str, value: int, sentence: str, tmp_path: Path) -> None:
    """Before anything is made of it that takes memory."""
    folder = write_random_llama(tmp_path / "hf")
    write_gguf(folder, tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    at = data.index(f"llama.{key}".encode() + struct.pack("<I", 4)) + len(f"llama.{key}") + 4
    (tmp_path / "model.gguf").write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
    with pytest.raises(UnsupportedModelError, match=sentence):
        open_checkpoint(tmp_path / "model.gguf")
