"""`octavo doctor`: what it shows, and that its verdict is what serving would say."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from octavo_engine.commands import doctor as command
from octavo_engine.commands.doctor import doctor, examine
from octavo_engine.commands.findings import Findings, size
from octavo_engine.commands.kept import measure
from octavo_engine.contract import ENV_CACHE, ENV_MODELS
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.model.bundled import BUNDLED, BundledModel
from octavo_engine.worker.load import load_model
from octavo_engine.worker.sizing import StartError
from octavo_kernels.cpu import variants
from tests.model.conftest import write_random_llama


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, and no wish for a variant."""
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(ENV_MODELS, raising=False)
    monkeypatch.delenv("OCTAVO_CPU_ISA", raising=False)
    return tmp_path / "cache"


def table(findings: Findings, title: str) -> dict[str, str]:
    return dict(findings.tables[title])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_command_shows_the_machine_and_ends_with_a_verdict() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo_engine.cli", "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in ("instruction sets", "CPU quota", "memory limit", "variant in use", "pyzmq", *BUNDLED, "to clear one"):
        assert word in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Verdict: octavo serve works here, on the CPU, with ")


def test_a_machine_that_can_serve_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor() == 0
    assert f"works here, on the CPU, with {variants()[-1]} kernels, " in last_line(capsys)


@pytest.mark.parametrize("variant", variants())
def test_a_forced_variant_is_shown_as_forced(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", variant)
    findings = examine()
    kernels = table(findings, "CPU kernels")
    assert (kernels["OCTAVO_CPU_ISA"], kernels["variant in use"]) == (variant, f"{variant} (forced)")
    assert findings.variant == variant
    slower = variant != variants()[-1]
    assert any("unset OCTAVO_CPU_ISA" in note for note in findings.notes) == slower


def test_what_is_no_variant_is_one_sentence_that_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same one that serving gives."""
    monkeypatch.setenv("OCTAVO_CPU_ISA", "avx")
    (sentence,) = examine().lacking
    assert sentence == (
        "OCTAVO_CPU_ISA is avx, which this machine cannot run or Octavo does not have; use one of "
        f"{', '.join(variants())}, or leave it unset for the fastest."
    )
    assert doctor() == 1
    assert last_line(capsys) == "Verdict: octavo serve does not work here, for what is lacking."
    config = EngineConfig(model=str(write_random_llama(tmp_path / "model")), socket_folder="")
    with pytest.raises(StartError) as raised:
        load_model(config, lambda stage, fraction: None)
    assert str(raised.value) == sentence


def test_missing_packages_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def without_two(name: str) -> str:
        if name in ("fastapi", "llguidance", "torch"):
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(command, "version", without_two)
    findings = examine()
    assert findings.lacking == ["Packages are missing (fastapi, llguidance): run pip install 'octavo[engine]'."]
    assert table(findings, "GPU")["torch"] == "not installed"


@pytest.mark.parametrize(
    ("driver", "torch", "device"),
    [
        (False, True, "auto is cpu: no NVIDIA driver here"),
        (True, False, "auto is cpu: pip install octavo[gpu] for torch"),
        (True, True, "auto is cuda, if torch finds a GPU of compute capability 8.0 or newer"),
    ],
)
def test_the_device_that_auto_means(
    driver: bool, torch: bool, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "torch" and not torch:
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(command, "version", version)
    monkeypatch.setattr(command, "NVIDIA", tmp_path if driver else tmp_path / "none")
    assert table(examine(), "GPU")["--device"] == device


def test_missing_kernels_are_told_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "octavo_engine.worker.backends.cpu", None)
    (sentence,) = examine().lacking
    assert "There are no CPU kernels" in sentence
    assert "pip install --force-reinstall 'octavo[engine]'" in sentence


def test_a_bundled_model_is_ready_or_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = BundledModel("small", "small", "1", "", 0, "small/small.gguf", "", 4)
    monkeypatch.setattr(command, "BUNDLED", {"small": model})
    findings = examine()
    assert findings.ready == []
    assert any("run octavo pull bundled://small" in note for note in findings.notes)
    model.cache_path.parent.mkdir(parents=True)
    model.cache_path.write_bytes(b"GGUF")
    findings = examine()
    assert findings.ready == ["bundled://small"]
    assert table(findings, "Bundled models")["bundled://small"] == str(model.cache_path)
    assert doctor() == 0
    assert last_line(capsys).endswith("Try: octavo serve bundled://small")
    monkeypatch.setattr(command, "BUNDLED", {"small": model._replace(gguf_bytes=1 << 60)})
    findings = examine()
    assert findings.ready == []
    assert any("does not fit" in note for note in findings.notes)


def test_the_cache_is_shown_with_sizes_and_how_to_clear_it(cache: Path) -> None:
    (cache / "packed").mkdir(parents=True)
    (cache / "packed/a.packed").write_bytes(bytes(3 << 20))
    (cache / "packed/b.packed").write_bytes(bytes(1 << 20))
    (cache / "packed/link").symlink_to("/dev/zero")
    (cache / "kernels").mkdir()
    shown = table(examine(), "Cache")
    assert shown["folder"].startswith(str(cache))
    assert shown["packed"].startswith("4.0 MiB in 3 files: weights as the kernels read them")
    assert "models" not in shown
    assert shown["others"].startswith("kernels: ")
    assert shown["to clear one"].startswith(f"rm -r {cache}/NAME")


def test_a_cache_that_cannot_be_written_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file/below"):
        monkeypatch.setenv(ENV_CACHE, str(folder))
        findings = examine()
        assert findings.lacking == []
        assert any("cannot be written" in note and ENV_CACHE in note for note in findings.notes), folder


def test_no_temporary_folder_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(command.tempfile, "TemporaryDirectory", none)
    (sentence,) = examine().lacking
    assert "name one in TMPDIR" in sentence


def test_a_folder_that_goes_while_it_is_measured_holds_what_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    walk = os.walk

    def and_one_more(path: Path) -> object:
        for folder, folders, names in walk(path):
            yield folder, folders, [*names, "gone"]

    monkeypatch.setattr(os, "walk", and_one_more)
    assert measure(tmp_path).nbytes == 10
    assert measure(tmp_path / "nothing").files == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 KiB"), (2048, "2 KiB"), (1 << 20, "1.0 MiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1048576.0 GiB")],
)
def test_sizes_are_read_by_people(count: int, text: str) -> None:
    assert size(count) == text
