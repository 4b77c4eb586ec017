"""Which Octavo was measured: the commit of the checkout it runs from, and nobody else's."""

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from octavo_engine import release
from octavo_engine.bench import report
from octavo_engine.bench.machine import describe_machine
from octavo_engine.cli import app


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    ran = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


@pytest.fixture
def module(tmp_path):
    """A committed module, tagged: the commit is told whatever is tagged."""
    git(tmp_path, "init", "-q")
    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "First")
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    return file


def test_the_commit_is_the_checkouts_with_a_mark_for_changes(module):
    head = git(module.parent, "rev-parse", "HEAD")
    assert release.commit_of(module) == head
    (module.parent / "report.json").touch()
    assert release.commit_of(module) == head
    module.write_text("x = 2\n")
    assert release.commit_of(module) == f"{head}+changes"


def test_a_hooks_variables_name_no_other_checkout(module, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert release.commit_of(module)


def test_an_installation_inside_a_checkout_is_not_that_checkouts(module):
    installed = module.parent / "site-packages" / "module.py"
    installed.parent.mkdir()
    shutil.copy(module, installed)
    assert release.commit_of(installed) == ""


def test_without_a_checkout_or_without_git_there_is_no_commit(module, tmp_path_factory, monkeypatch):
    plain = tmp_path_factory.mktemp("plain") / "module.py"
    plain.touch()
    assert release.commit_of(plain) == ""
    monkeypatch.setenv("PATH", str(plain.parent))
    assert release.commit_of(module) == ""


def test_the_machine_tells_the_commit_and_what_it_did(monkeypatch):
    monkeypatch.setattr(release, "commit", lambda: "abc+changes")
    machine = describe_machine(role="load generator")
    assert machine.sentence().startswith(f"load generator: {machine.cpu}, ")
    assert f"Octavo {release.version()} at abc+changes, Python" in machine.sentence()
    assert describe_machine().sentence().startswith(f"{machine.cpu}, ")


def test_the_version_is_said(monkeypatch):
    monkeypatch.setattr(release, "commit", lambda: "")
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.output) == (0, f"octavo {release.version()}\n")
    monkeypatch.setattr(release, "commit", lambda: "abc")
    assert CliRunner().invoke(app, ["--version"]).output == f"octavo {release.version()} at abc\n"


def test_the_command_is_told_without_a_password(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/cli.py", "bench", "serve", "http://me:secret@host:1/v1", "--json", "a b.json"])
    assert report.typed_command() == "octavo bench serve http://host:1/v1 --json 'a b.json'"
