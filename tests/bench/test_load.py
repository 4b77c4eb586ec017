"""The load generator against the real server: whole answers, failures that count, probes meanwhile."""

import asyncio
import math
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest

from octavo_engine import contract
from octavo_engine.bench import load as load_module
from octavo_engine.bench import online, workload
from octavo_engine.bench.load import LoadResult, Outcome, Target, drive, first_model
from octavo_engine.bench.own_server import ServerError, own_server, serve_flags
from octavo_engine.ipc.config import EngineConfig

URI = "scripted://?step=2ms&blocks=512&max_len=512"


@pytest.fixture(scope="module")
def server():
    with own_server(URI, serve_flags(EngineConfig(model=URI, socket_folder="", max_num_batched_tokens=256))) as running:
        yield running


def test_clients_at_once_get_every_token(server):
    items = workload.mixed(24, vocab=255)
    load = asyncio.run(drive(Target(server.url, server.name), items, clients=8))
    assert load.failed == 0
    assert load.output_tokens == sum(item.max_tokens for item in items)
    assert load.prompt_tokens == sum(len(item.prompt) for item in items)
    assert load.health
    assert all(math.isfinite(seconds) for seconds in load.health)
    assert all(outcome.ttft <= outcome.e2e for outcome in load.outcomes)


def test_open_loop_sends_at_the_arrivals_whatever_has_become_of_the_others(server):
    items = workload.poisson(workload.fixed(20, 16, 40, vocab=255), rate=40)
    load = asyncio.run(drive(Target(server.url, server.name), items))
    assert load.failed == 0
    assert len(load.outcomes) == 20
    for outcome, item in zip(load.outcomes, items, strict=True):
        assert outcome.arrival == pytest.approx(item.arrival + outcome.late)
        assert outcome.late >= 0


def test_refused_requests_are_infinite_and_the_others_go_on(server):
    items = [workload.Item((100,) * 16, 4), workload.Item((100,) * 600, 4), workload.Item((100,) * 16, 4)]
    load = asyncio.run(drive(Target(server.url, server.name), items))
    assert [bool(outcome.error) for outcome in load.outcomes] == [False, True, False]
    assert "400" in load.outcomes[1].error
    assert load.outcomes[1].ttft == math.inf
    found = online.summarize(load, items, slo_ttft=60, slo_itl=60)
    assert found.failed == 1
    assert found.ttft["p99"] == math.inf
    assert found.slo_attainment == pytest.approx(2 / 3)
    assert "1 of them failed" in online.table(found).title


@contextmanager
def answering(answer):
    """A server that reads requests and writes `answer` to each, and keeps its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepted = []

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                accepted.append(connection)
                threading.Thread(target=reply, args=(connection,), daemon=True).start()

        def reply(connection):
            while connection.recv(65536):
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for connection in accepted:
            connection.close()


def test_an_answer_that_is_no_stream_is_a_failure():
    page = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi"
    with answering(page) as url:
        load = asyncio.run(drive(Target(url, "m"), workload.fixed(3, 4, 4, vocab=255), clients=2, probe=False))
    assert load.failed == 3
    assert "no event stream" in load.outcomes[0].error


@pytest.mark.parametrize(("usage", "failed"), [(b',"usage":{"completion_tokens":3}', 2), (b"", 0)])
def test_fewer_tokens_than_asked_for_are_a_failure_if_the_server_counts_them(usage, failed):
    events = b'data: {"choices":[{"text":"abcd"}]%b}\n\ndata: [DONE]\n\n' % usage
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(events)
    with answering(head + events) as url:
        load = asyncio.run(drive(Target(url, "m"), workload.fixed(2, 4, 4, vocab=255), clients=1, probe=False))
    assert load.failed == failed
    assert ("ended after 3 of 4 tokens" in load.first_error) == bool(failed)


def test_a_silent_server_is_told_of(monkeypatch):
    monkeypatch.setattr(load_module, "FIRST_ANSWER_SECONDS", 0.2)
    with answering(b"") as url, pytest.raises(ValueError, match="does not answer within 0 s"):
        asyncio.run(first_model(url))


def test_the_server_says_its_first_model(server):
    assert asyncio.run(first_model(server.url)) == server.name


def test_saturation_is_what_the_server_ends_for_the_clients(server):
    rate = online.saturation(Target(server.url, server.name), lambda n: workload.fixed(n, 16, 10, vocab=255), 8, 1.0)
    assert rate > 1


def test_cpu_is_told_by_process(server):
    taken = server.cpu_seconds()
    assert set(taken) == {"api", "engine", "tokenisers"}
    assert min(taken["api"], taken["engine"]) > 0


def test_nobody_there_is_one_sentence():
    with pytest.raises(OSError, match="Nobody answers"):
        asyncio.run(drive(Target("http://127.0.0.1:1", "x"), workload.fixed(1, 4, 1)))


def test_a_server_of_the_bench_asks_for_no_key(monkeypatch, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    monkeypatch.setenv(contract.ENV_API_KEYS_FILE, str(keys))
    with own_server(URI) as server:
        assert asyncio.run(first_model(server.url)) == server.name


def test_a_server_ends_with_its_bench():
    starts = (
        "from octavo_engine.bench.own_server import own_server\n"
        f"with own_server({URI!r}) as server:\n"
        "    print(server._process.pid, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bench:
        server = psutil.Process(int(bench.stdout.readline()))
        family = [server, *server.children(recursive=True)]
        bench.kill()
        _, alive = psutil.wait_procs(family, timeout=60)
    assert len(family) > 1
    assert not alive


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(ServerError, match="nowhere"), own_server("/nowhere"):
        pass


def test_a_failure_keeps_no_objective():
    failed = Outcome(0, 0, math.inf, [math.inf], math.inf, 4, 0, "gone")
    good = Outcome(0, 0, 0.1, [0.01, 0.03], 0.2, 4, 3)
    load = LoadResult(2.0, [failed, good], [0.01, math.inf], 0.1)
    found = online.summarize(load, [workload.Item((1,), 3)] * 2, slo_ttft=1, slo_itl=1)
    assert (found.slo_attainment, found.goodput, found.health_failed) == (0.5, 0.5, 1)
    assert (load.request_rate, load.output_tokens) == (0.5, 3)
