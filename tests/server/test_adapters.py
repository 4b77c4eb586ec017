"""LoRA adapters at run time: loaded and unloaded on the admin port, models by name, there again after a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from tests.server.launch import NO_TLS, Server, serving, wait_until
from tests.server.test_engine_death import open_stream

URI = "scripted://?step=2ms&eos=0"
COMPLETIONS = contract.PATH_COMPLETIONS


def make_adapter(folder: Path, content: str) -> Path:
    """Write what a scripted model takes for an adapter: files whose content decides the text."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (folder / "adapter_model.safetensors").write_text(content)
    return folder


def admin(server: Server, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.admin_port}{path}", json=body, timeout=60, verify=NO_TLS)


def load(server: Server, name: str, folder: Path) -> httpx.Response:
    return admin(server, contract.PATH_LOAD_ADAPTER, {"lora_name": name, "lora_path": str(folder)})


def unload(server: Server, name: str) -> httpx.Response:
    return admin(server, contract.PATH_UNLOAD_ADAPTER, {"lora_name": name})


def text(server: Server, model: str, **fields: Any) -> str:
    body = {"model": model, "prompt": "a prompt of some length", "max_tokens": 16, "temperature": 0, **fields}
    answer = server.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


def names(server: Server) -> list[str]:
    return [card["id"] for card in server.get(contract.PATH_MODELS).json()["data"]]


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    return {name: make_adapter(tmp_path / name, name) for name in ("one", "two", "three")}


@pytest.fixture
def running(tmp_path: Path, adapters: dict[str, Path]) -> Iterator[Server]:
    flags = ("--drain-propagation", "0", "--lora-modules", f"one={adapters['one']}", "--max-loras", "2")
    with serving(tmp_path, URI, *flags) as server:
        yield server


def test_adapters_are_models_while_they_are_loaded(running: Server, adapters: dict[str, Path]) -> None:
    assert names(running) == ["scripted", "one"]
    answer = load(running, "two", adapters["two"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "loaded"
    assert names(running) == ["scripted", "one", "two"]
    card = running.get(contract.PATH_MODELS + "/two").json()
    assert (card["id"], card["parent"], card["root"]) == ("two", "scripted", "scripted")
    texts = {model: text(running, model) for model in ("scripted", "one", "two")}
    assert len(set(texts.values())) == 3
    assert unload(running, "one").json() == {"name": "one", "status": "unloaded"}
    assert names(running) == ["scripted", "two"]
    gone = running.post(COMPLETIONS, {"model": "one", "prompt": "p"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    # Another name for the same content gives the same text, from the same cached blocks.
    assert load(running, "again", adapters["one"]).status_code == 200
    assert text(running, "again") == texts["one"]
    assert text(running, "two") == texts["two"]


def test_every_route_of_text_takes_an_adapters_name(running: Server) -> None:
    chat = {"model": "one", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
    adapted = running.post(contract.PATH_CHAT_COMPLETIONS, chat).json()
    plain = running.post(contract.PATH_CHAT_COMPLETIONS, {**chat, "model": "scripted"}).json()
    assert adapted["model"] == "one"
    assert adapted["choices"][0]["message"]["content"] != plain["choices"][0]["message"]["content"]
    assert running.post(contract.PATH_TOKENIZE, {"model": "one", "prompt": "abc"}).json()["count"] == 3


def test_what_cannot_be_loaded_is_refused_in_a_sentence(running: Server, adapters: dict[str, Path]) -> None:
    refusals = [
        (load(running, "scripted", adapters["two"]), "The name 'scripted' is taken"),
        (load(running, "one", adapters["two"]), "The name 'one' is taken"),
        (load(running, "two", adapters["two"].parent / "none"), "There is no adapter_config.json in"),
        (load(running, "two", Path("relative")), "absolute path"),
        (load(running, "", adapters["two"]), "1 to 253 printable characters"),
        (admin(running, contract.PATH_LOAD_ADAPTER, {"lora_name": "x"}), "'lora_name', 'lora_path'"),
        (admin(running, contract.PATH_UNLOAD_ADAPTER, []), "'lora_name'"),
    ]
    for answer, sentence in refusals:
        assert answer.status_code == 400, answer.text
        assert sentence in answer.json()["error"]["message"]
    assert unload(running, "nobody").status_code == 404
    assert load(running, "two", adapters["two"]).status_code == 200
    full = load(running, "three", adapters["three"])
    assert (full.status_code, full.json()["error"]["code"]) == (400, "too_many_adapters")
    assert names(running) == ["scripted", "one", "two"]


def test_unloading_waits_for_the_requests_that_have_it(tmp_path: Path, adapters: dict[str, Path]) -> None:
    with serving(tmp_path, "scripted://?step=10ms&eos=0", "--lora-modules", f"one={adapters['one']}") as server:
        stream: list[Any] = []
        body = {"model": "one", "prompt": "p", "max_tokens": 100, "stream": True}
        reading = open_stream(server, stream, body)
        wait_until(lambda: stream, 10, "the stream began")
        unloaded: list[httpx.Response] = []
        unloading = threading.Thread(target=lambda: unloaded.append(unload(server, "one")))
        unloading.start()
        wait_until(lambda: names(server) == ["scripted"], 10, "the name is offered no more")
        assert not unloaded
        reading.join(20)
        unloading.join(20)
        assert stream[-1] == "[DONE]"
        assert unloaded[0].status_code == 200


def test_a_new_engine_has_the_adapters_of_the_old_one(running: Server, adapters: dict[str, Path]) -> None:
    load(running, "two", adapters["two"])
    before = {model: text(running, model) for model in ("scripted", "one", "two")}
    first = running.engine().pid
    running.engine().kill()
    wait_until(lambda: running.status("/ready") == 503, 10, "the death is seen")
    wait_until(lambda: running.status("/ready") == 200, 20, "ready again")
    assert running.engine().pid != first
    assert {model: text(running, model) for model in before} == before


def write_file(path: Path, **wanted: Path) -> None:
    """Replace the file at once, as a mounted ConfigMap's are."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({name: str(folder) for name, folder in wanted.items()}))
    fresh.rename(path)


def test_a_file_of_adapters_is_followed(tmp_path: Path, adapters: dict[str, Path]) -> None:
    wanted = tmp_path / "adapters.json"
    missing = tmp_path / "later"
    write_file(wanted, one=adapters["one"], later=missing)
    with serving(tmp_path, URI, "--lora-modules-file", str(wanted)) as server:
        # Ready with what can be had; what cannot is tried again.
        assert names(server) == ["scripted", "one"]
        first = text(server, "one")
        load(server, "by-hand", adapters["three"])
        make_adapter(missing, "later")
        wait_until(lambda: "later" in names(server), 20, "the late one is loaded")
        write_file(wanted, one=adapters["two"])
        wait_until(lambda: names(server) == ["scripted", "by-hand", "one"], 20, "the file is followed")
        assert text(server, "one") != first
        wanted.write_text("{")
        wait_until(lambda: "cannot be read" in server.text_log(), 20, "the bad file is told of")
        assert names(server) == ["scripted", "by-hand", "one"]
        write_file(wanted)
        wait_until(lambda: names(server) == ["scripted", "by-hand"], 20, "the file is followed again")


def test_an_adapter_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo_engine.cli", "serve", URI, "--port", "0", "--admin-port", "0"]
    for flag, sentence in ((f"a={tmp_path}", "adapter_config.json"), ("nothing", "is not NAME=FOLDER")):
        ended = subprocess.run([*command, "--lora-modules", flag], capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert sentence in ended.stderr.replace("\n", " ")
