"""Which engine serves, and what is said where the one that is asked for cannot."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker import device
from octavo_engine.worker.device import gpu_batched_tokens, serves_on_gpu
from octavo_engine.worker.load import load_model
from octavo_engine.worker.sizing import StartError
from octavo_engine.worker.start import _draft_source


def config(model="/nowhere", **chosen):
    return EngineConfig(socket_folder="/nowhere", model=model, **chosen)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A machine with NVIDIA's driver, and no GPU that torch sees."""
    file = tmp_path / "nvidiactl"
    file.touch()
    monkeypatch.setattr(device, "NVIDIA", file)


@pytest.fixture
def gpu(driver, monkeypatch):
    """A machine with a GPU as old as the test says."""
    found = SimpleNamespace(name="Tesla X", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    return found


def test_without_a_driver_the_cpu_serves_and_torch_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "NVIDIA", tmp_path / "none")
    monkeypatch.setattr(device, "_refusal", lambda: pytest.fail("it takes two seconds"))
    assert not serves_on_gpu("auto")
    assert not serves_on_gpu("cpu")


def test_a_gpu_that_is_there_serves_unless_the_cpu_is_asked_for(gpu):
    assert serves_on_gpu("auto")
    assert serves_on_gpu("cuda")
    assert not serves_on_gpu("cpu")


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_without_what_the_kernels_need_cuda_is_refused(missing, driver, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(StartError, match=rf"needs {missing}, which is not installed: pip install octavo\[gpu\]"):
        serves_on_gpu("cuda")


def test_without_a_gpu_cuda_is_refused_and_auto_takes_the_cpu_and_says_why(driver, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StartError, match=r"finds no NVIDIA GPU here: check nvidia-smi.*nvidia\.com/gpu, or use"):
        serves_on_gpu("cuda")
    assert not serves_on_gpu("auto")
    assert "the CPU serves: --device cuda finds no NVIDIA GPU" in caplog.text


def test_a_gpu_that_is_too_old_is_refused(gpu, caplog):
    gpu.major, gpu.minor = 7, 5
    with pytest.raises(StartError, match=r"Tesla X has compute capability 7\.5 .* or newer: use a newer GPU or"):
        serves_on_gpu("cuda")
    assert not serves_on_gpu("auto")
    assert "compute capability 7.5" in caplog.text


def test_rocm_is_compiled_for_and_not_served(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(StartError, match="not served on it yet: use an NVIDIA GPU or --device cpu"):
        serves_on_gpu("cuda")


@pytest.mark.parametrize("model", ["/nowhere", "scripted://"])
def test_several_ranks_are_for_gpus(model):
    chosen = config(model, device="cpu", tensor_parallel_size=2)
    with pytest.raises(StartError, match="--tensor-parallel-size above 1 divides a model among GPUs: use --device"):
        load_model(chosen, lambda stage, fraction: None)


def test_several_ranks_need_as_many_gpus(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = config(device="cuda", tensor_parallel_size=2)
    with pytest.raises(StartError, match="needs 2 GPUs and 1 are here"):
        load_model(chosen, lambda stage, fraction: None, lambda error: None)
    with pytest.raises(StartError, match="above 1 is for serving: measure with octavo bench serve"):
        load_model(chosen, lambda stage, fraction: None)


def test_nothing_is_drafted_on_a_gpu(gpu):
    model = SimpleNamespace(backend="triton")
    for speculation in ("auto", "off"):
        assert _draft_source(model, config(speculation=speculation)) is None
    with pytest.raises(StartError, match="not offered on a GPU yet: use --speculation off or auto"):
        load_model(config(speculation="ngram"), lambda stage, fraction: None)


@pytest.mark.parametrize(("tokens", "sequences", "expected"), [(0, 0, 2048), (0, 3000, 3000), (64, 8, 64)])
def test_a_step_has_a_token_for_each_sequence(tokens, sequences, expected):
    assert gpu_batched_tokens(config(max_num_batched_tokens=tokens, max_num_seqs=sequences)) == expected
