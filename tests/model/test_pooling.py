"""How a checkpoint says what its embeddings are, and models that were saved without a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.pooling import Pooling, pooling_from_folder, pooling_from_gguf
from tests.model.conftest import write_random_llama
from tests.model.test_safetensors import edit

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}


def write(folder: Path, modules: Any = None, **pooling: Any) -> Path:
    """Write what sentence-transformers puts beside a model."""
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        ({}, "mean"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 64}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"word_embedding_dimension": 64}, "mean"),
        ({"embedding_dimension": 64, "pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
@pytest.mark.parametrize("modules", [None, [TRANSFORMER, POOLING, NORMALIZE]])
def test_the_folder_s_own_pooling_is_read(tmp_path: Path, modules: Any, stated: dict[str, Any], kind: str) -> None:
    assert pooling_from_folder(write(tmp_path, modules, **stated), {}) == Pooling(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("modules", "stated", "named"),
    [
        (None, {"pooling_mode_cls_token": True}, "pooled by cls"),
        (None, {"pooling_mode": "max"}, "pooled by max"),
        (None, {"pooling_mode_weightedmean_tokens": True}, "pooled by weightedmean"),
        (None, {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "mean and lasttoken"),
        (None, {"pooling_mode": 7}, "cannot be read"),
        ([TRANSFORMER, POOLING, DENSE, NORMALIZE], {"pooling_mode_mean_tokens": True}, "a Dense layer"),
        ([TRANSFORMER, {**POOLING, "path": "../1_Pooling"}], {}, "elsewhere"),
        ({"not": "a list"}, {}, "cannot be read"),
    ],
)
def test_what_is_not_served_is_said_in_a_sentence(tmp_path: Path, modules: Any, stated: Any, named: str) -> None:
    refusal = pooling_from_folder(write(tmp_path, modules, **stated), {}).refusal
    assert named in refusal
    assert refusal.endswith((".", ")."))


@pytest.mark.parametrize("config", [{"use_bidirectional_attention": True}, {"is_causal": False}])
def test_attention_in_both_directions_is_not_served(tmp_path: Path, config: dict[str, Any]) -> None:
    assert "what follows" in pooling_from_folder(tmp_path, config).refusal


@pytest.mark.parametrize(
    ("config", "shortens", "lengths"),
    [
        ({}, False, ()),
        ({"is_matryoshka": True}, True, ()),
        ({"is_matryoshka": False}, False, ()),
        ({"matryoshka_dimensions": [64, 16, 32, 16]}, True, (16, 32, 64)),
        ({"matryoshka_dimensions": []}, False, ()),
        ({"matryoshka_dimensions": ["16"]}, False, ()),
    ],
)
def test_only_a_model_that_says_so_was_trained_for_shorter_vectors(
    tmp_path: Path, config: dict[str, Any], shortens: bool, lengths: tuple[int, ...]
) -> None:
    assert pooling_from_folder(tmp_path, config) == Pooling(shortens=shortens, lengths=lengths)


@pytest.mark.parametrize(("number", "kind"), [(None, "mean"), (0, "mean"), (1, "mean"), (3, "last")])
def test_a_gguf_s_own_pooling_is_read(number: int | None, kind: str) -> None:
    keys = {"general.architecture": "qwen3", **({} if number is None else {"qwen3.pooling_type": number})}
    assert pooling_from_gguf(keys) == Pooling(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("pooling_type", 2, "pooled by cls"),
        ("pooling_type", 4, "pooled by rank"),
        ("pooling_type", 9, "pooled by type 9"),
        ("attention.causal", False, "what follows"),
    ],
)
def test_what_a_gguf_asks_for_in_vain_is_said(key: str, value: Any, named: str) -> None:
    assert named in pooling_from_gguf({"general.architecture": "llama", f"llama.{key}": value}).refusal


def test_the_bundled_model_says_nothing_and_gives_the_mean(smollm2_path: Path) -> None:
    assert open_checkpoint(smollm2_path).pooling == Pooling()


def test_a_model_saved_without_its_head_is_read(tmp_path: Path) -> None:
    """As sentence-transformers saves one: another architecture's name, no prefix before the tensors'."""
    folder, bare = write_random_llama(tmp_path / "whole"), write_random_llama(tmp_path / "bare")
    tensors = load_file(bare / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file({name.removeprefix("model."): value for name, value in tensors.items()}, bare / "model.safetensors")
    edit(bare, architectures=["LlamaModel"])
    write(bare, [TRANSFORMER, POOLING], pooling_mode_lasttoken=True)
    whole, read = open_checkpoint(folder), open_checkpoint(bare)
    assert read.pooling == Pooling("last")
    assert read.spec.tied_embeddings
    for name in ("embedding.weight", "layers.1.o.weight", "final_norm.weight"):
        assert np.array_equal(read.tensor(name).dequantize(), whole.tensor(name).dequantize())
