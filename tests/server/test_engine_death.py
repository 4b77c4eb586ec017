"""What health, readiness, streams and the exit code say when the engine dies or hangs, and when it does not (B33)."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from tests.server.launch import Server, events, free_port, serving, wait_until

COMPLETIONS = contract.PATH_COMPLETIONS


def open_stream(server: Server, into: list[Any], body: dict[str, Any] | None = None) -> threading.Thread:
    """Read a long stream on a thread; its events, or what broke it, go into `into`."""

    def run() -> None:
        chosen = body or {"prompt": "p", "max_tokens": 4000, "stream": True}
        try:
            with server.client() as client, client.stream("POST", COMPLETIONS, json=chosen) as response:
                for event in events(response):
                    into.append(event)
        except httpx.TransportError as error:
            into.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_b33_a_killed_engine_ends_streams_with_an_error_and_another_one_serves(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?step=10ms&eos=0", "--drain-propagation", "0") as server:
        streams: list[list[Any]] = [[], []]
        threads = [open_stream(server, into) for into in streams]
        wait_until(lambda: all(streams), 10, "streams began")
        whole: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: whole.append(server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 4000}))
        )
        asking.start()
        running = "octavo_requests_running"
        wait_until(lambda: server.metrics(running)[running] == 3, 10, "all three run")
        first = server.engine().pid
        os.kill(first, signal.SIGKILL)
        for thread in (*threads, asking):
            thread.join(10)
        for path in ("/health", "/ready"):
            wait_until(lambda path=path: server.status(path) == 200, 20, f"{path} again")
        assert server.engine().pid != first
        assert server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2}).status_code == 200
        server.wait_idle()
        outcomes = server.metrics("octavo_requests_total")
        assert outcomes['octavo_requests_total{outcome="error"}'] == 3
    for events_ in streams:
        assert events_[-1]["error"]["type"] == "server_error", events_[-1]
        assert "[DONE]" not in events_
    assert whole[0].status_code == 500
    assert whole[0].json()["error"]["code"] == "engine_error"
    assert "SIGKILL" in server.text_log()


def test_b33_health_fails_from_the_engine_s_death_until_the_next_one_has_loaded(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?step=10ms&eos=0", "--drain-propagation", "0") as server:
        server.engine().kill()
        seen: list[int] = []
        began = time.monotonic()
        while (503 not in seen or seen[-1] == 503) and time.monotonic() - began < 20:
            answer = server.get("/health")
            seen.append(answer.status_code)
            if answer.status_code == 503:
                assert answer.json()["error"]["code"] == "engine_dead", "silent is something else"
        assert [status for status, _ in itertools.groupby(seen)] in ([200, 503, 200], [503, 200])


def test_b33_an_engine_that_keeps_dying_ends_the_server(tmp_path: Path) -> None:
    flags = ("--engine-restarts", "1", "--drain-propagation", "0")
    with serving(tmp_path, "scripted://?step=10ms&eos=0", *flags) as server:
        first = server.engine()
        first.kill()
        wait_until(lambda: not first.is_running() and server.status("/ready") == 200, 20, "another engine")
        server.engine().kill()
        assert server.process.wait(10) == 1
    assert "It is not started again: the limit is 1 restarts within 600 s (--engine-restarts)." in server.text_log()


def test_b33_a_step_that_raises_fails_its_requests_only(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?step=5ms&eos=0&raise=7", "--drain-propagation", "0") as server:
        bad = server.post(COMPLETIONS, {"prompt": [7], "max_tokens": 4})
        assert bad.status_code == 500
        assert bad.json()["error"]["type"] == "server_error"
        good = server.post(COMPLETIONS, {"prompt": [8], "max_tokens": 4})
        assert good.status_code == 200
        assert server.status("/health") == 200


def test_b33_a_stopped_engine_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?step=5ms&eos=0", "--health-timeout", "2", "--drain-propagation", "0") as server:
        first, into = server.engine(), []
        thread = open_stream(server, into)
        wait_until(lambda: into, 10, "the stream began")
        first.suspend()
        began = time.monotonic()
        wait_until(lambda: server.status("/health") == 503, 15, "health fails")
        assert time.monotonic() - began >= 1, "not before its time-out"
        thread.join(10)
        assert into[-1]["error"]["type"] == "server_error"
        refused = server.post(COMPLETIONS, {"prompt": "p"})
        if refused.status_code == 503:
            assert refused.headers["x-octavo-not-started"] == "1"
        wait_until(lambda: server.status("/ready") == 200, 20, "ready again")
        assert not first.is_running()
        assert server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2}).status_code == 200
        assert re.search(r"it has not answered for \d+ s", server.text_log())


def test_b33_long_steps_are_alive(tmp_path: Path) -> None:
    with serving(
        tmp_path, "scripted://?step=1500ms&eos=0", "--health-timeout", "1", "--max-num-batched-tokens", "256"
    ) as server:
        into: list[Any] = []
        thread = open_stream(server, into, {"prompt": "p", "max_tokens": 4, "stream": True})
        while thread.is_alive():
            answer = server.get("/health")
            assert answer.status_code == 200
            time.sleep(0.1)
        assert into[-1] == "[DONE]"


def test_b33_the_port_opens_before_the_model_is_loaded(tmp_path: Path) -> None:
    """Alive and not ready while loading; requests are refused as not begun."""
    began = time.monotonic()
    with serving(tmp_path, "scripted://?step=150ms", "--drain-propagation", "0", ready=False) as server:
        wait_until(lambda: server.status("/health") == 200, 10, "health")
        opened = time.monotonic() - began
        answer = server.get("/ready")
        refused = server.post(COMPLETIONS, {"prompt": "p"})
        assert answer.status_code == 503
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.headers["x-octavo-not-started"] == "1"
        wait_until(lambda: server.status("/ready") == 200, 60, "ready")
    assert opened < 5, "under a second on a machine that does nothing else"


def test_neither_process_imports_torch(server: Server) -> None:
    for process in (server.process.pid, server.engine().pid, *(child.pid for child in server.tokenisers())):
        assert "libtorch" not in Path(f"/proc/{process}/maps").read_text()


def test_the_socket_folder_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    with serving(tmp_path, "scripted://", "--drain-propagation", "0", environment={"TMPDIR": str(folder)}):
        made = list(folder.iterdir())
        assert len(made) == 2, "the sockets, and the model's tokens"
        assert {each.stat().st_mode & 0o777 for each in made} == {0o700}
    assert not list(folder.iterdir())


def test_a_tokenising_process_that_dies_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?eos=0", "--drain-propagation", "0") as server:
        for process in server.tokenisers():
            process.kill()
        assert server.status("/health") == 200
        first = server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2})
        assert first.status_code in (200, 503)
        assert server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("uri", "flags", "sentence"),
    [
        ("scripted://?nonsense=1", (), "nonsense"),
        ("/nowhere/model.gguf", (), "no model at /nowhere/model.gguf"),
        ("bundled://nobody", (), "no bundled model"),
        ("scripted://", ("--api-keys-file", "/nowhere/keys"), "key file /nowhere/keys"),
        ("scripted://?blocks=4", ("--max-model-len", "8192"), "--max-model-len"),
    ],
)
def test_a_start_that_fails_says_one_sentence(tmp_path: Path, uri: str, flags: tuple[str, ...], sentence: str) -> None:
    with serving(tmp_path, uri, *flags, ready=False) as server:
        assert server.process.wait(30) == 1
    last = server.text_log().splitlines()[-1]
    assert last.startswith("octavo serve: ")
    assert sentence in last
    assert "Traceback" not in server.text_log()


def test_a_port_in_use_is_named(server: Server, tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://", "--port", str(server.port), ready=False) as second:
        assert second.process.wait(30) == 1
    assert f"port {server.port}" in second.text_log()
    assert free_port() != server.port
