"""/v1/responses: keys, queue, counters, clients that leave and engines that die, as on every route."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine import contract
from tests.server.double import Script, double
from tests.server.launch import Server, serving, wait_until
from tests.server.responding import (
    RESPONSES,
    read_events,
    rebuilt,
)
from tests.server.test_clients_leaving import GONE_SECONDS, connect, outcomes, running
from tests.server.test_refusals import check_error


def test_a_key_is_needed_here_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with double(Script([97]), api_keys_file=keys) as server, server.client() as client:
        check_error(client.post(RESPONSES, json={"input": "p"}), 401)
        shown = client.post(RESPONSES, json={"input": "p"}, headers={"authorization": "Bearer alpha"})
    assert shown.status_code == 200


def test_nothing_can_be_got_back(server: Server) -> None:
    check_error(server.get(RESPONSES), 405)
    check_error(server.get(f"{RESPONSES}/resp_1"), 404)
    check_error(server.post(f"{RESPONSES}/resp_1/cancel", {}), 404)


def test_it_is_counted_and_salted_as_all_others_are() -> None:
    with double(Script([97] * 4)) as server:
        assert server.post(RESPONSES, {"input": "p", "max_output_tokens": 3, "cache_salt": "mine"}).status_code == 200
        check_error(server.post(RESPONSES, {"input": "p" * 500}))
        counters = server.state.counters
        assert (counters.outcomes["length"], counters.outcomes["rejected"]) == (1, 1)
        assert counters.generated_tokens == 3
        server.state.lifecycle.abort()
        refused = server.post(RESPONSES, {"input": "p"})
        assert [submit.salt for submit in server.script.submits] == ["direct\0mine"]
    assert check_error(refused, 503)["type"] == "service_unavailable_error"
    assert refused.headers[contract.HEADER_NOT_STARTED] == "1"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_full_queue_answers_429_before_any_header(streamed: bool) -> None:
    with double(Script([97], refuse="queue_full")) as server:
        refused = server.post(RESPONSES, {"input": "p", "stream": streamed})
    assert check_error(refused, 429)["code"] == "queue_full"
    assert refused.headers["retry-after"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(quiet: Server, streamed: bool) -> None:
    before = outcomes(quiet)["abort"]
    body = {"input": "p", "max_output_tokens": 5000, "ignore_eos": True, "stream": streamed}
    connection = connect(quiet.port, RESPONSES, body)
    wait_until(lambda: running(quiet) == 1, 10, "running")
    connection.close()
    quiet.wait_idle(GONE_SECONDS)
    assert outcomes(quiet)["abort"] == before + 1


@pytest.mark.parametrize("per_step", [1, 2])
def test_a_stream_that_breaks_ends_as_failed_with_what_there_was(per_step: int) -> None:
    with double(Script([97] * 9, per_step=per_step, fail_after=3)) as server:
        *events, failed = read_events(server, {"input": "p"})
        whole = check_error(server.post(RESPONSES, {"input": "p"}), 500)
    assert failed["type"] == "response.failed"
    response = failed["response"]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["error"] == {"code": "server_error", "message": whole["message"]}
    assert "not finite" in whole["message"]
    (item,) = response["output"]
    assert item == {**rebuilt(events)[0], "status": "incomplete"}
    assert not any(event["type"].endswith("done") for event in events)


def test_b33_a_killed_engine_fails_streams_and_another_one_serves(tmp_path: Path) -> None:
    body = {"input": "p", "max_output_tokens": 4000}
    with serving(tmp_path, "scripted://?step=10ms&eos=0", "--drain-propagation", "0") as server:
        streamed: list[list[dict[str, Any]]] = []
        whole: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda: streamed.append(read_events(server, body))),
            threading.Thread(target=lambda: whole.append(server.post(RESPONSES, body))),
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: running(server) == 2, 10, "both run")
        first = server.engine().pid
        os.kill(first, signal.SIGKILL)
        for thread in threads:
            thread.join(10)
        wait_until(lambda: server.status("/ready") == 200, 20, "another engine")
        assert server.post(RESPONSES, {"input": "p", "max_output_tokens": 2}).status_code == 200
        server.wait_idle()
    (events,) = streamed
    assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert check_error(whole[0], 500)["code"] == "engine_error"
