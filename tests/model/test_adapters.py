"""LoRA adapters: what is read of their files, and that a model with one computes what the merged model does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo_engine.model.adapter import open_adapter
from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.spec import UnsupportedModelError
from tests.model.adapters import MODULES, merge_adapter, write_adapter
from tests.model.building import build
from tests.model.conftest import write_random_llama
from tests.model.stepping import Part, generate, run, tables

PROMPT = list(range(3, 90))


@pytest.mark.parametrize(
    ("modules", "config", "scales"),
    [
        (MODULES, {}, {"": 2.0}),
        (("q_proj", "v_proj"), {}, {"": 2.0}),
        (("up_proj",), {"lora_alpha": 2}, {"": 0.5}),
        (("k_proj", "gate_proj", "down_proj"), {"use_rslora": True}, {"": 4.0}),
        (MODULES, {"alpha_pattern": {"q_proj": 4, "mlp.gate_proj": 16}}, {"q_proj": 1.0, "gate_proj": 4.0, "": 2.0}),
        (MODULES, {"alpha_pattern": {"q_proj": 0, "gate_proj": -8}}, {"q_proj": 0.0, "gate_proj": -2.0, "": 2.0}),
        (
            ("q_proj", "down_proj"),
            {"r": 7, "rank_pattern": {r"layers\.\d+\.self_attn\.q_proj": 4, "down_proj": 4}},
            {"": 2.0},
        ),
    ],
)
def test_a_model_with_an_adapter_computes_what_the_merged_one_does(
    modules: tuple[str, ...], config: dict[str, Any], scales: dict[str, float], tmp_path: Path
) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, modules=modules, **config)
    adapted, merged = build(folder), build(merge_adapter(tmp_path / "merged", folder, adapter, scales))
    adapted.set_adapter(3, adapted.open_adapter(adapter))
    results = []
    for model, slot in ((adapted, 3), (merged, -1), (adapted, -1)):
        model.layout.allocate([6])
        results.append(run(model, Part(tables(1, 6)[0], PROMPT, 0, every_position=True, adapter=slot)))
    with_adapter, expected, without = results
    np.testing.assert_allclose(with_adapter, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert np.abs(without - expected).max() > 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_adapters_side_by_side_give_the_bits_that_each_gives_alone(quantization: str, tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    model = build(folder, dtype="auto", quantization=quantization)
    for slot, modules in ((0, MODULES), (2, ("q_proj", "o_proj")), (5, ("gate_proj",))):
        made = write_adapter(tmp_path / str(slot), folder, seed=slot, rank=2 + slot, modules=modules)
        model.set_adapter(slot, model.open_adapter(made))
    model.layout.allocate([30])
    chosen = (0, -1, 5, 2, 0)
    tables_of = tables(5, 6, seed=1)
    parts = [
        Part(table, PROMPT[row:], 0, every_position=True, adapter=slot)
        for row, (table, slot) in enumerate(zip(tables_of, chosen, strict=True))
    ]
    together = run(model, *parts)
    alone = np.concatenate([run(model, part) for part in parts])
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))


def test_a_slot_that_was_freed_is_another_adapter_later(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    model = build(folder)
    model.layout.allocate([6])
    part = Part(tables(1, 6)[0], PROMPT, 0, adapter=1)
    first, second = (model.open_adapter(write_adapter(tmp_path / str(n), folder, seed=n)) for n in range(2))
    assert first.digest != second.digest
    logits = []
    for adapter in (first, second, first):
        model.set_adapter(1, adapter)
        logits.append(run(model, part))
        model.set_adapter(1, None)
    assert np.array_equal(logits[0], logits[2])
    assert not np.array_equal(logits[0], logits[1])
    with pytest.raises(KeyError):
        run(model, part)


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_half_precision_adapters_are_as_they_were_stored(kind: str, tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder)
    stored = load_file(adapter / "adapter_model.safetensors")
    if kind == "F16":
        rounded = {name: values.astype(np.float16) for name, values in stored.items()}
        save_file(rounded, adapter / "adapter_model.safetensors")
        widened = {name: values.astype(np.float32) for name, values in rounded.items()}
    else:
        widened = {name: (values.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, values in stored.items()}
        write_bf16(adapter / "adapter_model.safetensors", widened)
    exact = write_adapter(tmp_path / "exact", folder)
    save_file(widened, exact / "adapter_model.safetensors")
    model = build(folder)
    model.layout.allocate([6])
    logits = []
    for made in (adapter, exact):
        model.set_adapter(0, model.open_adapter(made))
        logits.append(run(model, Part(tables(1, 6)[0], PROMPT, 0, every_position=True, adapter=0)))
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-5 * np.abs(logits[1]).max())


def write_bf16(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write float32 of bfloat16's precision as bfloat16, which the library's numpy side cannot."""
    header, data = {}, b""
    for name, values in tensors.items():
        piece = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(piece)],
        }
        data += piece
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def test_what_an_adapter_says_is_read(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    spec = open_checkpoint(folder).spec
    adapter = write_adapter(tmp_path / "a", folder, rank=16, use_rslora=True, modules=("q_proj", "down_proj"))
    found = open_adapter(adapter, spec)
    assert sorted(found.parts) == ["layers.0.down", "layers.0.q", "layers.1.down", "layers.1.q"]
    part = found.parts["layers.1.down"]
    assert (part.rank, part.a.shape, part.b.shape, part.scale) == (16, (16, 96), (64, 16), 8 / math.sqrt(16))
    again = write_adapter(tmp_path / "b", folder, rank=16, use_rslora=True, modules=("q_proj", "down_proj"))
    assert open_adapter(again, spec).digest == found.digest
    other = write_adapter(tmp_path / "c", folder, rank=16, modules=("q_proj", "down_proj"))
    assert open_adapter(other, spec).digest != found.digest


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"peft_type": "IA3"}, "is of the kind IA3, not LORA"),
        ({"use_dora": True}, r"DoRA.*use_dora"),
        ({"bias": "all"}, r"trains biases \(bias: all\)"),
        ({"lora_bias": True}, r"trains biases \(lora_bias\)"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
        ({"fan_in_fan_out": True}, r"transposed.*fan_in_fan_out"),
        ({"alora_invocation_tokens": [5, 6]}, "alora_invocation_tokens"),
        ({"use_qalora": True}, "use_qalora"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"use_bdlora": {}}, "use_bdlora"),
        ({"arrow_config": {"top_k": 3}}, "arrow_config"),
        ({"kasa_config": {}}, "kasa_config"),
        ({"monteclora_config": {}}, "monteclora_config"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights: pissa_niter_16"),
        ({"init_lora_weights": "olora"}, "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": {}}, "init_lora_weights"),
        ({"use_the_next_thing": 0.5}, "'use_the_next_thing', which is not known here"),
    ],
)
def test_adapters_that_would_be_computed_wrongly_are_refused(
    config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, **config)
    with pytest.raises(UnsupportedModelError, match=sentence):
        open_adapter(adapter, open_checkpoint(folder).spec)


def test_what_peft_writes_of_a_plain_adapter_is_read(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    spec = open_checkpoint(folder).spec
    plain = {
        **{"alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None},
        **{"base_model_name_or_path": "m", "corda_config": None, "ensure_weight_tying": False, "eva_config": None},
        **{"exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True},
        **{"kasa_config": None, "layer_replication": None, "layers_pattern": None, "layers_to_transform": None},
        **{"loftq_config": {}, "lora_bias": False, "lora_dropout": 0.05, "lora_ga_config": None},
        **{"megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None},
        **{"monteclora_config": None, "peft_version": "0.21.2", "qalora_group_size": 16, "rank_pattern": {}},
        **{"revision": None, "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None},
        **{"use_bdlora": None, "use_dora": False, "use_qalora": False, "use_rslora": False, "velora_config": None},
    }
    assert len(open_adapter(write_adapter(tmp_path / "a", folder, **plain), spec).parts) == 2 * len(MODULES)
    trained_otherwise = {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "unknown_and_unused": None}
    assert open_adapter(write_adapter(tmp_path / "b", folder, **plain | trained_otherwise), spec).parts


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": r".*self_attn\.[qv]_proj"},
        {"target_modules": ["self_attn.q_proj", "v_proj", "a_module_of_others"]},
        {
            "target_modules": list(MODULES),
            "exclude_modules": ["k_proj", "o_proj", "mlp.gate_proj", "up_proj", "down_proj"],
        },
        {"target_modules": "all-linear", "exclude_modules": r".*(mlp|[ko]_proj).*"},
        {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
        {"layers_to_transform": []},
        {"target_modules": None},
    ],
)
def test_modules_are_chosen_as_peft_does(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, modules=("q_proj", "v_proj"), **config)
    assert len(open_adapter(adapter, open_checkpoint(folder).spec).parts) == 4


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"target_modules": ["up_proj"]}, r"leaves out 'model.layers.0.self_attn.q_proj' .*target_modules"),
        ({"target_modules": "q_proj"}, "leaves out 'model.layers.0.self_attn.q_proj'"),
        ({"exclude_modules": ["v_proj"]}, "leaves out 'model.layers.0.self_attn.v_proj'"),
        ({"layers_to_transform": 0}, "leaves out 'model.layers.1.self_attn.q_proj'"),
        ({"layers_to_transform": [0, 1], "layers_pattern": ["h"]}, "leaves out"),
        ({"target_modules": ["q_proj", "k_proj", "v_proj"]}, "names 'model.layers.0.self_attn.k_proj' .* no factors"),
        ({"r": 16}, r"'model.layers.0.self_attn.q_proj' has rank 16, and its factors have 4"),
        ({"rank_pattern": {"v_proj": 8}}, r"'model.layers.0.self_attn.v_proj' has rank 8, and its factors have 4"),
        ({"r": 0}, r"adapter_config.json is not as PEFT saves it .*>= 1 - at `\$\.r`"),
        ({"r": "4"}, r"got `str` - at `\$\.r`"),
        ({"r": True}, r"got `bool` - at `\$\.r`"),
        ({"lora_alpha": None}, r"got `null` - at `\$\.lora_alpha`"),
        ({"lora_alpha": "8"}, r"got `str` - at `\$\.lora_alpha`"),
        ({"lora_alpha": math.nan}, r"an alpha of nan \('lora_alpha'\)"),
        ({"lora_alpha": math.inf}, "an alpha of inf"),
        ({"lora_alpha": 10**400}, "is not as PEFT saves it"),
        ({"lora_alpha": 1e39}, "not finite, or become so when multiplied"),
        ({"alpha_pattern": {"q_proj": -math.inf}}, r"an alpha of -inf \('q_proj'\)"),
        ({"alpha_pattern": [1]}, r"at `\$\.alpha_pattern`"),
        ({"alpha_pattern": {"q_proj(": 1}}, "is not as PEFT saves it .*unterminated"),
        ({"use_rslora": "yes"}, r"at `\$\.use_rslora`"),
        ({"target_modules": "(q_proj"}, "is not as PEFT saves it"),
        ({"layers_to_transform": 0, "layers_pattern": "("}, "is not as PEFT saves it"),
    ],
)
def test_a_configuration_that_contradicts_the_weights_or_itself_is_one_sentence(
    config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, modules=("q_proj", "v_proj"), **config)
    with pytest.raises(UnsupportedModelError, match=sentence) as refused:
        open_adapter(adapter, open_checkpoint(folder).spec)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{nope", "[]", "3", "[" * 100_000, '{"peft_type": "LORA"}'])
def test_a_configuration_that_is_none_is_one_sentence(text: str, tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder)
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises(UnsupportedModelError, match=r"adapter_config.json is not .*; save the adapter again\.$"):
        open_adapter(adapter, open_checkpoint(folder).spec)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused(kind: str, value: float, tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, modules=("up_proj",))
    weights = adapter / "adapter_model.safetensors"
    stored = load_file(weights)
    stored["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"][3, 2] = value
    if kind == "BF16":
        write_bf16(weights, stored)
    else:
        save_file({name: values.astype({"F32": "f4", "F16": "f2"}[kind]) for name, values in stored.items()}, weights)
    with pytest.raises(UnsupportedModelError, match=r"weights of 'model.layers.1.mlp.up_proj' that are not finite"):
        open_adapter(adapter, open_checkpoint(folder).spec)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    spec = open_checkpoint(folder).spec
    wider = write_random_llama(tmp_path / "wider", intermediate_size=128)
    with pytest.raises(UnsupportedModelError, match="trained for another model"):
        open_adapter(write_adapter(tmp_path / "a", wider), spec)
    deeper = write_random_llama(tmp_path / "deeper", num_hidden_layers=3)
    with pytest.raises(UnsupportedModelError, match=r"adapts 'base_model.model.model.layers.2.* not served"):
        open_adapter(write_adapter(tmp_path / "b", deeper), spec)
    with pytest.raises(UnsupportedModelError, match="lm_head"):
        open_adapter(write_adapter(tmp_path / "c", folder, modules=("lm_head",)), spec)
    with pytest.raises(UnsupportedModelError, match=r"no adapter_config.json in .*; give a folder"):
        open_adapter(tmp_path, spec)
    half = write_adapter(tmp_path / "d", folder)
    tensors = load_file(half / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"]
    save_file(tensors, half / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"one factor of 'model.layers.0.mlp.up_proj' only"):
        open_adapter(half, spec)
    with pytest.raises(UnsupportedModelError, match="rank 1 to 512"):
        open_adapter(write_adapter(tmp_path / "e", folder, rank=513), spec)


def test_greedy_texts_with_adapters_are_the_merged_models(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", folder, seed=4)
    model, merged = build(folder), build(merge_adapter(tmp_path / "merged", folder, adapter, {"": 2.0}))
    model.set_adapter(0, model.open_adapter(adapter))
    for each in (model, merged):
        each.layout.allocate([20])
    assert generate(model, [PROMPT], 12, adapter=0).tokens == generate(merged, [PROMPT], 12).tokens
