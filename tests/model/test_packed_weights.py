"""Packed weights on disk: used again, never half written, never believed when damaged, never needed."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_engine.contract import ENV_CACHE
from octavo_engine.worker.backends import cpu_weights, packed_file
from tests.model.building import build_in_cache
from tests.model.stepping import Part, run

PROMPT = list(range(40))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(ENV_CACHE, str(folder))
    return folder


def logits(folder: Path, **precision: str) -> NDArray[np.float32]:
    model = build_in_cache(folder, **(precision or {"dtype": "bfloat16"}))
    model.layout.allocate([3])
    return run(model, Part([0, 1, 2], PROMPT, 0, every_position=True))


def packed(cache: Path) -> list[Path]:
    """Every file of the folder, partial ones too."""
    return sorted((cache / "packed").iterdir()) if (cache / "packed").exists() else []


def forbid_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(cpu_weights, "_pack", fail)


def test_a_second_start_packs_nothing_and_computes_the_same(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(random_llama_folder)
    assert len(packed(cache)) == 1
    forbid_packing(monkeypatch)
    assert np.array_equal(logits(random_llama_folder), first)


def test_computing_leaves_the_file_as_it_is(cache: Path, random_llama_folder: Path) -> None:
    logits(random_llama_folder)
    (path,) = packed(cache)
    data = path.read_bytes()
    model = build_in_cache(random_llama_folder, dtype="bfloat16")
    model.layout.allocate([3])
    run(model, Part([0, 1, 2], PROMPT, 0))
    assert path.read_bytes() == data


def test_each_precision_and_each_model_has_a_file_of_its_own(
    cache: Path, random_llama_folder: Path, tmp_path: Path
) -> None:
    from tests.model.conftest import write_random_llama

    other = write_random_llama(tmp_path / "other", seed=9)
    results = [
        logits(random_llama_folder, dtype="bfloat16"),
        logits(random_llama_folder, dtype="auto", quantization="int8"),
        logits(other, dtype="bfloat16"),
    ]
    assert len(packed(cache)) == 3
    assert not np.array_equal(results[0], results[2])


@pytest.mark.parametrize("damage", ["cut", "flipped", "header", "empty", "other"])
def test_a_damaged_file_is_packed_again(
    cache: Path, random_llama_folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(random_llama_folder)
    (path,) = packed(cache)
    whole = path.read_bytes()
    at = {"header": 30, "flipped": len(whole) - 1000}.get(damage, 0)
    changed = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
    path.write_bytes({"cut": whole[:-64], "empty": b"", "other": b"x" * len(whole)}.get(damage, changed))
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(logits(random_llama_folder), expected)
    assert "packed again" in caplog.text
    assert path.read_bytes() == whole
    assert len(packed(cache)) == 1


def test_a_file_of_another_packing_is_not_used_and_goes(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(random_llama_folder)
    (old,) = packed(cache)
    for module in (packed_file, cpu_weights):
        monkeypatch.setattr(module, "PACKING_VERSION", packed_file.PACKING_VERSION + 1)
    logits(random_llama_folder)
    (new,) = packed(cache)
    assert new != old


def test_a_write_that_fails_leaves_nothing_and_the_model_runs(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(random_llama_folder)
    packed(cache)[0].unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert np.array_equal(logits(random_llama_folder), expected)
    assert caplog.text.count("are not kept") == 1
    assert "No space left" in caplog.text
    assert packed(cache) == []


def test_a_cache_that_cannot_be_written_is_no_failure(
    tmp_path: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the folder should be: it refuses root, too, whom a read-only mode would not stop."""
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    assert np.isfinite(logits(random_llama_folder)).all()
    assert caplog.text.count("are not kept") == 1


def test_what_dies_while_it_writes_leaves_no_file_that_is_read(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cpu_weights, "_pack", die)
        with pytest.raises(KeyboardInterrupt):
            logits(random_llama_folder)
    assert packed(cache) == []
    # A killed process cleans nothing up: what it left is no file's name, and goes when it is old.
    partial = cache / "packed/.x.packed.abc.partial"
    partial.write_bytes(b"half")
    logits(random_llama_folder)
    assert partial in packed(cache)
    os.utime(partial, (0, 0))
    logits(random_llama_folder, dtype="float32")
    assert partial not in packed(cache)


def test_engines_that_start_together_all_find_whole_files(cache: Path, random_llama_folder: Path) -> None:
    results: list[NDArray[np.float32]] = []
    threads = [threading.Thread(target=lambda: results.append(logits(random_llama_folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(result, results[0]) for result in results)
    assert len(packed(cache)) == 1
