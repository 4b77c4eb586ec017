"""Packed weights on disk: used again, never half written, never believed when damaged, never needed."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def header_of(whole: bytes) -> tuple[bytes, int]:
    """Return the header of a packed file, and where its data starts."""
    end = 16 + int.from_bytes(whole[8:16], "little")
    return whole[16:end], -(-end // 4096) * 4096


def with_header(whole: bytes, header: bytes, length: int | None = None) -> bytes:
    """Return a packed file with another header; `length` is what it says of its length."""
    _, start = header_of(whole)
    stated = (len(header) if length is None else length).to_bytes(8, "little")
    end = 16 + len(header)
    return whole[:8] + stated + header + bytes(-end % 4096) + whole[start:]


def flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "within the prefix": lambda whole: whole[:11],
    "within the header": lambda whole: whole[:40],
    "without data": lambda whole: whole[: header_of(whole)[1]],
    "cut": lambda whole: whole[:-64],
    "longer": lambda whole: whole + b"x",
    "something else": lambda whole: b"x" * len(whole),
    "a flipped bit in the header": lambda whole: flipped(whole, 30),
    "a flipped bit in the digest": lambda whole: flipped(whole, 16 + len(header_of(whole)[0]) - 10),
    "a flipped bit in the first matrix": lambda whole: flipped(whole, header_of(whole)[1]),
    "a flipped bit in the last matrix": lambda whole: flipped(whole, len(whole) - 1000),
    "deeply nested": lambda whole: with_header(whole, b"[" * 200_000 + b"]" * 200_000),
    "not UTF-8": lambda whole: with_header(whole, header_of(whole)[0].replace(b"layers", b"\xff\xfeyers")),
    "a digest that is none": lambda whole: with_header(whole, header_of(whole)[0][:-66] + b"\xff" * 64 + b'"}'),
    "a list": lambda whole: with_header(whole, b"[]"),
    "wrong types": lambda whole: with_header(whole, b'{"version":[],"model":1,"source":{},"entries":"","sha256":0}'),
    "no header": lambda whole: with_header(whole, b""),
    "a header longer than any": lambda whole: with_header(whole, header_of(whole)[0], 2**64 - 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_packed_again(
    cache: Path, random_llama_folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(random_llama_folder)
    (path,) = packed(cache)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
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


def test_no_place_for_a_cache_is_no_failure(
    random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without a home folder."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in (ENV_CACHE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
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


def test_what_a_killed_engine_left_goes_and_what_is_being_written_stays(cache: Path, random_llama_folder: Path) -> None:
    """Told by the lock of the one who writes, which ends with its process, however old the file is."""
    (cache / "packed").mkdir(parents=True)
    left, written = (cache / f"packed/.{name}.packed.abc.partial" for name in ("left", "written"))
    left.write_bytes(b"half")
    with written.open("wb") as stream:
        os.utime(written, (0, 0))
        fcntl.flock(stream, fcntl.LOCK_EX)
        logits(random_llama_folder)
        assert written in packed(cache)
        assert left not in packed(cache)
    logits(random_llama_folder, dtype="float32")
    assert written not in packed(cache)


def test_a_file_is_locked_for_as_long_as_it_is_written(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, seen = cpu_weights._pack, []

    def look(*args: Any) -> None:
        (partial,) = packed(cache)
        with partial.open("r+b") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(partial)
        pack(*args)

    monkeypatch.setattr(cpu_weights, "_pack", look)
    logits(random_llama_folder)
    assert len(set(seen)) == 1


def test_a_file_that_another_engine_removes_before_it_is_locked_is_made_anew(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make, made = tempfile.mkstemp, []

    def make_and_lose(**options: Any) -> tuple[int, str]:
        handle, name = make(**options)
        if name.endswith(".partial"):
            made.append(name)
            if len(made) == 1:
                os.unlink(name)
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", make_and_lose)
    logits(random_llama_folder)
    assert len(made) == 2
    assert "are not kept" not in caplog.text
    assert len(packed(cache)) == 1


def test_files_that_others_remove_meanwhile_and_what_may_not_be_removed_are_no_failure(
    cache: Path, random_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the listing and the removal: another engine put its file in place, or removed what this one would."""
    names, listed = (".gone.packed.abc.partial", "gone-0.packed"), Path.iterdir
    folder = cache / "packed/folder-0.packed"
    folder.mkdir(parents=True)

    def and_some_that_are_gone(self: Path) -> Iterator[Path]:
        yield from (self / name for name in names)
        yield from listed(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", and_some_that_are_gone)
        logits(random_llama_folder)
    assert "are not kept" not in caplog.text
    assert len(list((cache / "packed").glob("*.packed"))) == 2


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
