"""Hugging Face folders: what is read, and what is refused with which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.spec import UnsupportedModelError
from tests.model.conftest import write_random_llama


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in (config | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"quantization_config": {"quant_method": "gptq"}}, "[Qq]uantised"),
        ({"num_key_value_heads": 4}, "do not divide"),
        ({"hidden_size": None}, "hidden_size"),
        ({"head_dim": 2**31}, "states 2147483648 head dimensions, and 65536 are the most there can be"),
        ({"num_hidden_layers": 2**31}, "states 2147483648 layers, and 10000 are the most there can be"),
        ({"num_hidden_layers": -1}, "states -1 layers"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 2**31}, "states 2147483648 experts"),
        ({"num_attention_heads": 2**40, "head_dim": 16}, "do not divide|sizes must be"),
        ({"vocab_size": -1}, r"sizes must be .* \(vocabulary -1\)"),
        (
            {"intermediate_size": 0},
            r"sizes must be .* \(feed-forward size of layer 0 0, feed-forward size of layer 1 0",
        ),
        ({"max_position_embeddings": 2**40}, r"sizes must be .* \(context 1099511627776\)"),
        ({"sliding_window": -1}, "attends to a window of -1 tokens"),
        ({"hidden_size": "many"}, "says of itself is no model's"),
        ({"num_attention_heads": 0, "head_dim": None}, "says of itself is no model's"),
        ({"num_key_value_heads": [1]}, "says of itself is no model's"),
        ({"rope_scaling": "yarn"}, "says of itself is no model's"),
        ({"eos_token_id": {"id": 2}}, "says of itself is no model's"),
        ({"architectures": [["LlamaForCausalLM"]]}, "names no architecture"),
        ({"architectures": [], "model_type": None}, "names no architecture"),
    ],
)
def test_what_is_not_served_is_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(UnsupportedModelError, match=sentence):
        open_checkpoint(tmp_path)


def test_another_architecture_is_named_before_the_weights_that_its_folder_lacks(tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    edit(tmp_path, architectures=["GPT2LMHeadModel"])
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel is not served yet; the served ones are Llama.*"):
        open_checkpoint(tmp_path)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"x":1}',
        b'{"x":{}}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"x":' * 100_000 + b"}" * 100_000,
        b'{"\xff\xfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        *(
            json.dumps({"x": ENTRY | change}).encode()
            for change in (
                {"dtype": 1},
                {"shape": "1"},
                {"shape": [-1]},
                {"shape": [1.5]},
                {"data_offsets": [0]},
                {"data_offsets": [-4, 0]},
                {"data_offsets": ["0", "4"]},
                {"data_offsets": [0, 2**70]},
            )
        ),
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes, tmp_path: Path) -> None:
    file = write_random_llama(tmp_path) / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(UnsupportedModelError, match="download it again"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("stated", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(stated: str, tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(stated)
    with pytest.raises(UnsupportedModelError, match="download the model again"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_a_file_that_was_cut_short_is_refused(keep: int, tmp_path: Path) -> None:
    file = write_random_llama(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UnsupportedModelError, match="download it again"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')
    with pytest.raises(UnsupportedModelError, match="model-00002-of-00002"):
        open_checkpoint(tmp_path)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(UnsupportedModelError, match="outside its folder"):
        open_checkpoint(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    edit(tmp_path, num_hidden_layers=3)
    with pytest.raises(UnsupportedModelError, match=r"layers\.2\.self_attn"):
        open_checkpoint(tmp_path).tensor("layers.2.q.weight")


def test_generation_config_says_which_tokens_end_a_sequence(tmp_path: Path) -> None:
    write_random_llama(tmp_path)
    assert open_checkpoint(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert open_checkpoint(tmp_path).eos_token_ids == (5, 9)


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    plane = open_checkpoint(write_random_llama(tmp_path)).tensor("layers.0.gate.weight").planes[0]
    assert not plane.flags.writeable
    assert plane.dtype == np.float32


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="neither"):
        open_checkpoint(tmp_path)
