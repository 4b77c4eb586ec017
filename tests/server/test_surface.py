"""The rest of the HTTP surface: keys, trusted headers, metrics, models, our own client, the transport."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine import contract
from octavo_engine.ipc import messages as m
from octavo_engine.ipc.transport import EngineEndpoint, PeerGone, ServerEndpoint
from tests.server.double import Script, double
from tests.server.launch import Server, serving, wait_until
from tests.server.test_refusals import check_error

COMPLETIONS = contract.PATH_COMPLETIONS


# --- Keys and headers -------------------------------------------------------------------------------------------
def test_with_keys_everything_but_probes_and_metrics_needs_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    with double(Script([97]), api_keys_file=keys) as server, server.client() as client:
        for path in contract.PATHS_WITHOUT_KEY:
            assert client.get(path).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer gamma"},
            {"authorization": "alpha"},
            {"authorization": "Basic alpha"},
        ):
            answer = client.post(COMPLETIONS, json={"prompt": "p"}, headers=headers)
            error = check_error(answer, 401)
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            check_error(client.get("/v1/models", headers=headers), 401)
            check_error(client.get("/nowhere", headers=headers), 401)
        for key in ("alpha", "beta"):
            headers = {"authorization": f"Bearer {key}"}
            assert client.post(COMPLETIONS, json={"prompt": "p"}, headers=headers).status_code == 200


GATEWAY_HEADERS = {
    contract.HEADER_SALT: "tenant-a",
    contract.HEADER_MODEL: "resolved",
    contract.HEADER_REQUEST_ID: "abc-1",
}


def test_the_gateway_s_headers_count_with_its_credential_only(tmp_path: Path) -> None:
    credential = tmp_path / "credential"
    credential.write_text("secret")
    script = Script([97])
    with double(script, gateway_credential_file=credential) as server, server.client() as client:
        shown = {**GATEWAY_HEADERS, contract.HEADER_GATEWAY_CREDENTIAL: "secret"}
        body = {"prompt": "p", "model": "alias"}
        trusted = client.post(COMPLETIONS, json=body, headers=shown)
        forged = {**shown, contract.HEADER_GATEWAY_CREDENTIAL: "guess"}
        for headers in (GATEWAY_HEADERS, forged):
            assert client.post(COMPLETIONS, json=body, headers=headers).status_code == 404, "the alias is not known"
            direct = client.post(COMPLETIONS, json={"prompt": "p"}, headers=headers)
            assert direct.json()["model"] == "double"
            assert direct.headers["x-request-id"] != "abc-1"
    assert trusted.json()["model"] == "resolved"
    assert trusted.headers["x-request-id"] == "abc-1"
    assert [submit.salt for submit in script.submits] == ["tenant-a", "direct", "direct"]


def test_every_answer_names_its_request(server: Server) -> None:
    names = {server.get(path).headers["x-request-id"] for path in ("/health", "/ready", "/v1/models", "/nowhere")}
    assert len(names) == 4


# --- Metrics ----------------------------------------------------------------------------------------------------
def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_metric_of_the_contract_is_there_with_its_alias(quiet: Server) -> None:
    assert quiet.post(COMPLETIONS, {"prompt": "metrics", "max_tokens": 3}).status_code == 200
    found = families(quiet.get("/metrics").text)
    for metric in contract.METRICS:
        for name in filter(None, (metric.name, metric.alias)):
            family = found[name.removesuffix("_total")]
            assert family.type == metric.kind, name
            assert family.samples, name
            for sample in family.samples:
                model = {"model_name"} if name == metric.alias else set()
                assert set(sample.labels) - {"le"} == set(metric.labels) | model
    for name in contract.VLLM_ONLY:
        assert found[name.removesuffix("_total")].samples, name
    assert {sample.labels["state"] for sample in found["octavo_kv_blocks"].samples} == {"active", "cached", "free"}
    outcomes = {sample.labels["outcome"] for sample in found["octavo_requests"].samples}
    assert outcomes == set(contract.OUTCOMES)


def test_a_scrape_may_ask_for_names(server: Server) -> None:
    names = [("name[]", name) for name in contract.SCRAPED_BY_AUTOSCALER]
    answer = server.get("/metrics", params=names)
    assert set(families(answer.text)) == set(contract.SCRAPED_BY_AUTOSCALER)
    assert len(answer.content) < 2000
    histogram = server.get("/metrics", params={"name[]": "octavo_step_seconds"})
    assert "octavo_step_seconds_bucket" in histogram.text
    assert server.get("/metrics", params={"name[]": "nothing"}).text == ""


def test_gauges_are_right_without_traffic(quiet: Server) -> None:
    name = contract.LAST_STEP_TIMESTAMP.name
    first = quiet.metrics(name)[name]
    wait_until(lambda: quiet.metrics(name)[name] > first, 3, "the engine ticks when idle")


def test_counters_count(quiet: Server) -> None:
    def totals() -> dict[str, float]:
        return quiet.metrics(
            "octavo_prompt_tokens_total", "octavo_generated_tokens_total", "octavo_prefix_tokens_total",
            "octavo_time_to_first_token_seconds", "octavo_inter_token_seconds", "octavo_requests_total",
        )  # fmt: skip

    before = totals()
    assert quiet.post(COMPLETIONS, {"prompt": "twelve bytes", "max_tokens": 7, "n": 2}).status_code == 200
    after = totals()
    gained = {key: after[key] - before[key] for key in after}
    assert gained["octavo_prompt_tokens_total"] == 12
    assert gained["octavo_generated_tokens_total"] == 14
    assert gained["octavo_time_to_first_token_seconds_count"] == 2
    assert gained["octavo_inter_token_seconds_count"] == 12
    assert gained['octavo_requests_total{outcome="length"}'] == 2


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--scheduler", "static"), "octavo_static_batches_total"),
        (("--kv-allocation", "contiguous", "--no-prefix-sharing"), "octavo_reserved_slots_total"),
    ],
)
def test_each_baseline_shows_in_the_metrics(tmp_path: Path, server: Server, flags: tuple[str, ...], shown: str) -> None:
    names = ("octavo_static_batches_total", "octavo_reserved_slots_total")
    assert set(server.metrics(*names).values()) == {0.0}, "continuous and paged: neither"
    with serving(tmp_path, "scripted://?step=1ms", "--drain-propagation", "0", *flags) as baseline:
        assert baseline.post(COMPLETIONS, {"prompt": "p", "max_tokens": 2}).status_code == 200
        baseline.wait_idle()
        found = baseline.metrics(*names)
        assert {name for name in names if found[name] > 0} == {shown}


def test_a_host_tier_shows_in_the_metrics(tmp_path: Path) -> None:
    names = ("octavo_kv_host_saved_blocks_total", "octavo_kv_host_loaded_blocks_total")
    model = "scripted://?step=1ms&blocks=16&max_len=256"
    with serving(tmp_path, model, "--drain-propagation", "0", "--kv-offload-memory", "1Mi") as tiered:
        cached = []
        for text in ("a" * 200, "b" * 200, "a" * 200):
            asked = {"prompt": text, "max_tokens": 2}
            cached.append(tiered.post(COMPLETIONS, asked).json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        tiered.wait_idle()
        assert cached == [0, 0, 192]
        assert min(tiered.metrics(*names).values()) > 0
        used, free = (
            tiered.metrics("octavo_kv_host_blocks")[f'octavo_kv_host_blocks{{state="{state}"}}']
            for state in ("used", "free")
        )
        assert min(used, free) > 0


# --- Clients ----------------------------------------------------------------------------------------------------
def test_octavo_chat_says_what_the_model_says(server: Server) -> None:
    command = [sys.executable, "-m", "octavo_engine.cli", "chat", server.url, "--prompt", "hello"]
    with double(Script([*b"bonjour", 256])) as other:
        command[4] = other.url
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "bonjour\n")
    command[4] = "http://127.0.0.1:1"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_keep_alive_outlives_the_gateway_s_idle_connections(server: Server) -> None:
    with server.client() as client:
        for _ in range(3):
            assert client.get("/health").status_code == 200
    assert contract.HTTP_KEEP_ALIVE_SECONDS > contract.UPSTREAM_IDLE_SECONDS


def test_nothing_is_compressed(server: Server) -> None:
    answer = httpx.get(server.url + "/metrics", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers


# --- Transport --------------------------------------------------------------------------------------------------
def test_messages_arrive_whole_and_in_order() -> None:
    async def run() -> None:
        server = ServerEndpoint()
        try:
            with pytest.raises(PeerGone):
                server.send(m.Shutdown())
            engine = EngineEndpoint(server.folder)
            engine.send(m.Progress("hello", 0.5))
            assert await server.receive() == m.Progress("hello", 0.5)
            sent = [
                m.Submit(
                    index, bytes(4 * index), m.SamplingParams(seed=2**64 - 1), m.StopRule(max_tokens=1), salt="s\0t"
                )
                for index in range(200)
            ]
            for message in sent:
                server.send(message)
            got: list[Any] = []
            while len(got) < len(sent):
                got += await asyncio.to_thread(engine.poll, 1.0)
            assert got == sent
            assert engine.poll(0) == []
            assert await asyncio.to_thread(engine.poll, 0.02) == []
            engine.close()
        finally:
            server.close()
        assert not server.folder.exists()

    asyncio.run(run())


def test_the_engine_s_last_word_arrives() -> None:
    async def run() -> None:
        server = ServerEndpoint()
        with EngineEndpoint(server.folder) as engine:
            engine.send(m.Failed("no memory"))
        assert await server.receive() == m.Failed("no memory")
        server.close()

    asyncio.run(run())
