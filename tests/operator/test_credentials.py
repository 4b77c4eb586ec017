"""Credentials from kubeconfig files, and sentences when there are none."""

from pathlib import Path

import pytest
import yaml

from octavo_operator.kube.credentials import load_credentials

USER = {"token": "secret"}
CLUSTER = {"server": "https://127.0.0.1:6443/", "insecure-skip-tls-verify": True}


def kubeconfig(folder: Path, login: dict[str, str], **context: str) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": CLUSTER}],
                "users": [{"name": "u", "user": login}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
                "current-context": "x",
            }
        )
    )
    return path


def test_a_token(tmp_path: Path) -> None:
    found = load_credentials(kubeconfig(tmp_path, USER, namespace="team-a"))
    assert (found.server, found.namespace) == ("https://127.0.0.1:6443", "team-a")
    assert found.headers() == {"Authorization": "Bearer secret"}


def test_a_token_file_is_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("rotated\n")
    found = load_credentials(kubeconfig(tmp_path, {"tokenFile": "token"}))
    assert found.headers() == {"Authorization": "Bearer rotated"}
    assert found.namespace == "default"


@pytest.mark.parametrize(
    ("login", "context", "words"),
    [
        (USER, {"user": "nobody"}, "no user named 'nobody'"),
        ({"exec": "aws"}, {}, "login plugins are not supported"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, login: dict[str, str], context: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        load_credentials(kubeconfig(tmp_path, login, **context))


def test_no_credentials_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="pass --kubeconfig"):
        load_credentials()
