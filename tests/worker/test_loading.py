"""Loading a model: what its header shows is refused before its weights are read, and nothing else is."""

import pytest

from octavo_engine.contract import ENV_CACHE
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.model import digest
from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.rope import rope_table
from octavo_engine.worker import load
from octavo_engine.worker.backends import cpu_weights
from octavo_engine.worker.backends.cpu import cpu_needs
from octavo_engine.worker.backends.cpu_precision import choose_precision
from octavo_engine.worker.load import load_model
from octavo_engine.worker.sizing import StartError
from tests.worker.backends import write_random_llama


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model whose packed weights go to a cache of the test's own."""
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    write_random_llama(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder, **options):
    return load_model(EngineConfig(model=str(folder), socket_folder="", **options), lambda stage, fraction: None)


@pytest.mark.parametrize(
    ("options", "left", "sentence"),
    [
        ({"kv_cache_memory": 1 << 50}, None, "does not fit"),
        ({"kv_cache_memory": 1}, None, "does not hold one block"),
        ({"max_model_len": 257}, None, "use 256 or less"),
        ({"max_model_len": 1 << 50}, None, "use 256 or less"),
        ({"max_model_len": 256, "kv_cache_memory": 1 << 15}, None, "Use --max-model-len"),
        ({"block_size": 32}, None, "use --block-size 16"),
        ({}, 1000, "The model's weights take"),
    ],
)
def test_no_weight_is_read_for_what_cannot_be_served(folder, options, left, sentence, monkeypatch):
    def read(*_, **__):
        raise AssertionError("weights are read")

    monkeypatch.setattr(digest, "read_sha256", read)
    monkeypatch.setattr(cpu_weights, "load_vector", read)
    monkeypatch.setattr(cpu_weights, "_pack", read)
    if left is not None:
        monkeypatch.setattr(load, "memory_left", lambda: left)
    with pytest.raises(StartError, match=sentence):
        loaded(folder, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "float32"}, {"quantization": "int8"}, {"quantization": "int4", "kv_cache_dtype": "float32"}],
)
def test_a_model_takes_what_its_header_said(folder, options, tmp_path):
    executable = loaded(folder, **options).executable
    checkpoint = open_checkpoint(folder)
    choices = {"dtype": "auto", "quantization": "auto", "kv_cache_dtype": "auto"} | options
    needs = cpu_needs(checkpoint, choose_precision(**choices, stored=checkpoint.quantization), 16, 0)
    (file,) = (tmp_path / "cache/packed").iterdir()
    header = -(-(16 + int.from_bytes(file.read_bytes()[8:16], "little")) // 4096) * 4096
    assert needs.weight_bytes == file.stat().st_size - header
    assert needs.table_bytes == sum(array.nbytes for array in rope_table(checkpoint.spec.layers[0].attention.rope, 256))
    assert needs.groups == executable.layout.groups
    assert needs.max_position == executable.max_position
