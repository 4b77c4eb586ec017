"""What a person is told when the cluster cannot be built here."""

from pathlib import Path

import pytest

from tests.cluster import build, limits
from tests.cluster.errors import ClusterError
from tests.cluster.layout import Layout
from tests.cluster.progress import Steps
from tests.cluster.versions import Binary
from tests.cluster.waiting import wait_until


def test_without_root_the_sentence_says_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        build.ensure_built()


def test_without_go_the_sentence_says_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="Go is missing"):
        build.build(tmp_path / "0123456789abcdef", Steps())


def test_a_failed_compilation_shows_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = Binary("broken", "./nowhere", 1)
    monkeypatch.setattr(build, "BINARIES", (broken,))
    with pytest.raises(ClusterError, match=r"building broken failed; the end of .*broken\.log:\n.*nowhere"):
        build.build(tmp_path / "0123456789abcdef", Steps())
    assert not (tmp_path / "0123456789abcdef").exists()


def test_old_builds_go_but_not_what_a_cluster_runs_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, used, newest, other = (tmp_path / name for name in ("0" * 16, "1" * 16, "2" * 16, "go"))
    for folder in (old, used, newest, other, tmp_path / "clusters" / "dev"):
        folder.mkdir(parents=True)
    (tmp_path / "clusters" / "dev" / "state.json").write_text(f'{{"build": "{used}"}}')
    monkeypatch.setenv("OCTAVO_CLUSTER_DIR", str(tmp_path / "clusters"))
    build.forget_old_builds(newest)
    assert not old.exists()
    assert all(folder.exists() for folder in (used, newest, other))


def test_the_raised_limit_is_put_back_by_the_last_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting, clusters = tmp_path / "setting", tmp_path / "clusters"
    setting.write_text("128")
    (clusters / "dev").mkdir(parents=True)
    monkeypatch.setattr(limits, "SETTING", setting)
    monkeypatch.setenv("OCTAVO_CLUSTER_DIR", str(clusters))
    limits.raise_limits()
    limits.raise_limits()  # by a second cluster: the first value is the one to keep
    assert setting.read_text() == "1024"
    limits.restore_limits()
    assert setting.read_text() == "1024"
    (clusters / "dev").rmdir()
    limits.restore_limits()
    assert setting.read_text() == "128"
    assert list(clusters.iterdir()) == []


@pytest.mark.parametrize("name", ["", "Dev", "a/b", "-a", "a" * 33])
def test_a_name_that_cannot_be_a_cluster_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster name"):
        Layout(name)


def test_a_wait_that_runs_out_says_what_for_and_why() -> None:
    def refuse() -> bool:
        raise ConnectionRefusedError("refused")

    with pytest.raises(ClusterError, match=r"the moon: not within 0 s \(refused\)\nsee the log"):
        wait_until(refuse, 0, "the moon", ignore=(OSError,), blame=lambda: "see the log")
