"""What the command line's types mean on a GPU, and what is refused with which sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.gpu.cache import GpuLayout
from octavo_engine.worker.gpu.load import ModelSizes, check_shares
from octavo_engine.worker.gpu.precision import GpuPrecision, choose_gpu_precision
from octavo_kernels.triton.targets import SM_80, SM_90, fp8_refusal, nearest_target
from tests.model.test_against_transformers import random_model
from tests.worker.driver import Driver
from tests.worker.gpu.both import cpu, prompt_of, tiny_folder
from tests.worker.gpu.building import build_gpu


@pytest.mark.parametrize(
    ("dtype", "quantization", "cache", "stored", "expected"),
    [
        ("auto", "auto", "auto", "BF16", ("bfloat16", "dense", "bfloat16")),
        ("auto", "auto", "auto", "F32", ("bfloat16", "dense", "bfloat16")),
        ("float16", "auto", "auto", "F16", ("float16", "dense", "float16")),
        ("auto", "auto", "auto", "Q8_0", ("bfloat16", "", "bfloat16")),
        ("float16", "auto", "fp8", "Q4_K", ("float16", "", "fp8")),
        ("float32", "auto", "auto", "Q8_0", ("float32", "dense", "float32")),
        ("auto", "none", "auto", "Q8_0", ("bfloat16", "dense", "bfloat16")),
        ("auto", "int8", "auto", "BF16", ("bfloat16", "int8", "bfloat16")),
        ("float16", "int4", "float32", "Q8_0", ("float16", "int4", "float32")),
        ("auto", "fp8", "fp8", "BF16", ("bfloat16", "fp8", "fp8")),
    ],
)
def test_the_precision_of_the_command_line_s_choices(dtype, quantization, cache, stored, expected):
    assert choose_gpu_precision(dtype, quantization, cache, stored) == GpuPrecision(*expected)


@pytest.mark.parametrize(
    ("quantization", "cache", "sentence"),
    [
        ("fp8", "auto", r"^--quantization fp8 is not served here: FP8 \(e4m3\) needs .* sm_80: use --quantization"),
        ("auto", "fp8", r"^--kv-cache-dtype fp8 is not served here: .*--kv-cache-dtype auto for the cache"),
        ("auto", "int8", r"^--kv-cache-dtype int8 is not served on a GPU: use bfloat16, float16, float32, fp8 or auto"),
    ],
)
def test_what_is_not_served_is_refused_with_the_remedy(quantization, cache, sentence):
    with pytest.raises(UnsupportedModelError, match=sentence):
        choose_gpu_precision("auto", quantization, cache, "BF16", fp8_refusal(SM_80) or "")
    assert fp8_refusal(SM_90) is None


@pytest.mark.parametrize("cache", ["bfloat16", "float16", "fp8"])
def test_the_exact_mode_keeps_its_cache_exact(cache):
    with pytest.raises(
        UnsupportedModelError, match=f"^--dtype float32 is the exact mode, which --kv-cache-dtype {cache}"
    ):
        choose_gpu_precision("float32", "auto", cache, "BF16")


@pytest.mark.parametrize(
    ("weights", "stored", "columns", "delicate", "kind"),
    [
        ("", "Q8_0", 64, False, ""),
        ("", "Q8_0", 64, True, "dense"),
        ("", "Q6_K", 256, False, "dense"),
        ("", "BF16", 64, False, "dense"),
        ("int8", "BF16", 64, False, "int8"),
        ("int4", "Q8_0", 40, False, "dense"),
        ("int4", "BF16", 64, True, "dense"),
        ("fp8", "BF16", 40, False, "fp8"),
        ("dense", "Q8_0", 64, False, "dense"),
    ],
)
def test_what_each_matrix_becomes(weights, stored, columns, delicate, kind):
    assert GpuPrecision("bfloat16", weights, "bfloat16").kind(stored, columns, delicate=delicate) == kind


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_90")]
)
def test_a_gpu_is_served_as_the_newest_target_that_it_runs(capability, name):
    target = nearest_target("A GPU", capability, 77)
    assert (target.name, target.processors) == (name, 77)


@pytest.mark.parametrize(
    "precision",
    [("bfloat16", "dense", "bfloat16"), ("float16", "int8", "float16"), ("bfloat16", "fp8", "fp8")],
)
def test_what_is_rounded_stays_near_what_is_exact(precision):
    def scores(executable):
        driver = Driver(executable)
        live = driver.live(prompt_of(4, 36), temperature=0.0)
        live.scores = True
        driver.generate(live, 1, chunk=20)
        return live.prompt_logprobs

    found, exact = scores(build_gpu(tiny_folder(), GpuPrecision(*precision))), scores(cpu())
    assert np.abs(np.array(found) - exact).mean() < 0.1
    assert np.abs(np.array(found) - exact).max() < 0.5


# --- the cache --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2), ("fp8", 1)])
def test_a_block_has_the_bytes_of_its_keys_and_values(dtype, size):
    spec = open_checkpoint(tiny_folder()).spec
    layout = GpuLayout(spec, 16, dtype, torch.device("cpu"))
    assert [tuple(group) for group in layout.groups] == [(0, 1 * 2 * 1 * 16 * 16 * size)]
    layout.allocate([3])
    assert layout.caches[0].shape == (1, 3, 2, 1, 16, 16)
    assert layout.caches[0].nbytes == 3 * layout.groups[0].bytes_per_block


def test_layers_of_one_window_are_a_group(tmp_path):
    random_model("gemma3", 3).save_pretrained(tmp_path)
    spec = open_checkpoint(tmp_path).spec
    layout = GpuLayout(spec, 16, "float16", torch.device("cpu"))
    windows = [layer.attention.window for layer in spec.layers]
    assert [group.window for group in layout.groups] == sorted(set(windows))
    layout.allocate([2, 5])
    for index, layer in enumerate(spec.layers):
        group, place = layout.places[index]
        assert layout.groups[group].window == layer.attention.window
        assert layout.members[group][place] == index
        assert layout.cache(index).data_ptr() == layout.caches[group][place].data_ptr()
    per_token = [group.bytes_per_block // 16 for group in layout.groups]
    sizes = {layer.attention.window: 2 * layer.attention.kv_size * 2 for layer in spec.layers}
    assert per_token == [windows.count(window) * size for window, size in sorted(sizes.items())]


def test_what_a_gpu_cannot_hold_is_refused_with_the_remedy():
    with pytest.raises(UnsupportedModelError, match="blocks of 16 tokens: use --block-size 16"):
        build_gpu(tiny_folder(), block_size=32)
    with pytest.raises(UnsupportedModelError, match="use at most 256"):
        build_gpu(tiny_folder(), max_position=257)
    spec = open_checkpoint(tiny_folder()).spec
    with pytest.raises(UnsupportedModelError):
        check_shares(spec, GpuPrecision("float32", "dense", "float32"), 3)
    assert ModelSizes().block_size == 16
