"""The safetensors that peers read hold the GGUF's weights, rounded once, and its vocabulary."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.model_files import ModelFiles, make_safetensors, to_bfloat16
from octavo_engine.model.bundled import BUNDLED
from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.pull import pull
from octavo_engine.model.qtensor import bfloat16_to_float32

MODEL = BUNDLED["smollm2-135m-instruct"]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126))
def test_bfloat16_is_the_nearest(value):
    (found,) = bfloat16_to_float32(to_bfloat16(np.array([value], dtype=np.float32))).astype(np.float64)
    bits = int(np.float32(value).view(np.uint32)) >> 16
    down, up = (float(bfloat16_to_float32(np.array([b], dtype=np.uint16))[0]) for b in (bits, bits + 1))
    assert found in (down, up)
    assert abs(found - float(np.float32(value))) == min(abs(x - float(np.float32(value))) for x in (down, up))


def test_halfway_goes_to_the_even_one():
    halves = np.array([0x3F808000, 0x3F818000], dtype=np.uint32).view(np.float32)
    assert to_bfloat16(halves).tolist() == [0x3F80, 0x3F82]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = pull(f"bundled://{MODEL.name}")
    made = ModelFiles(path, tmp_path_factory.mktemp("models"))
    assert make_safetensors(made) == made.safetensors
    return made


def test_the_weights_are_the_files_own_in_the_order_of_rotated_halves(files):
    ours, theirs = open_checkpoint(files.gguf), open_checkpoint(files.safetensors)
    for name in ("embedding", "layers.0.q", "layers.29.k", "layers.7.down", "layers.3.mlp_norm", "final_norm"):
        expected = bfloat16_to_float32(to_bfloat16(ours.tensor(f"{name}.weight").dequantize()))
        np.testing.assert_array_equal(theirs.tensor(f"{name}.weight").dequantize(), expected)
    assert theirs.spec.layers == ours.spec.layers
    assert (theirs.spec.tied_embeddings, theirs.spec.vocab_size) == (ours.spec.tied_embeddings, ours.spec.vocab_size)
    assert set(ours.eos_token_ids) == set(theirs.eos_token_ids)


def test_the_vocabulary_reads_and_writes_text(files):
    tokenizer = Tokenizer.from_file(str(files.safetensors / "tokenizer.json"))
    text = "Ünïcode, 1234 and <|im_start|>user\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    settings = json.loads((files.safetensors / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"


def test_what_is_made_once_is_not_made_again(files):
    before = (files.safetensors / "model.safetensors").stat().st_mtime_ns
    make_safetensors(files)
    assert (files.safetensors / "model.safetensors").stat().st_mtime_ns == before


def test_what_is_no_model_is_a_sentence(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(PeerError, match=r"broken\.gguf cannot be written as safetensors"):
        make_safetensors(ModelFiles(path, tmp_path))
