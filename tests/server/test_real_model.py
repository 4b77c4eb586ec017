"""The bundled model over HTTP, as a user starts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_engine.model.pull import pull
from tests.server.launch import Server, finish_reasons, read_stream, serving, text_of

MODEL = "bundled://smollm2-135m-instruct"
MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
GREEDY = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 20}
CACHE = 64 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server where importing torch leaves a mark, whoever catches the error."""
    folder = tmp_path_factory.mktemp("real")
    mark = folder / "imported"
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('not here')\n")
    pull(MODEL)
    flags = ("--drain-propagation", "0", "--kv-cache-memory", str(CACHE))
    with serving(folder, MODEL, *flags, name="m", environment={"PYTHONPATH": str(folder)}) as running:
        yield running
    assert not mark.exists(), "torch was imported"


def test_it_answers_and_neither_process_has_torch(server: Server) -> None:
    stream = read_stream(server, "/v1/chat/completions", GREEDY)
    assert "Paris" in text_of(stream)
    assert finish_reasons(stream) == ["stop"]
    whole = server.post("/v1/chat/completions", GREEDY).json()
    assert whole["choices"][0]["message"]["content"] == text_of(stream)
    for process in (server.process.pid, server.engine().pid, *(child.pid for child in server.tokenisers())):
        assert "torch" not in Path(f"/proc/{process}/maps").read_text()


def test_the_engine_takes_weights_and_cache_and_little_more(server: Server) -> None:
    """Files count where they are mapped, once for all engines that share them."""
    server.post("/v1/chat/completions", GREEDY)
    weights = 97 << 20
    assert server.engine().memory_full_info().pss < weights + CACHE + (120 << 20)


def test_a_schema_is_obeyed_with_tokens_of_many_bytes(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"country": {"type": "string", "maxLength": 20}, "capital": {"enum": ["Paris", "London"]}},
        "required": ["country", "capital"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema}}
    for fields in ({}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.5, "seed": 2}):
        body = {**GREEDY, "max_tokens": 80, "response_format": wanted, **fields}
        (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
        answer = json.loads(choice["message"]["content"])
        assert list(answer) == ["country", "capital"]
        assert answer["capital"] in ("Paris", "London")
        assert choice["finish_reason"] == "stop"


def test_what_is_alike_is_embedded_alike(server: Server) -> None:
    texts = ["A cat is sleeping on the sofa.", "The cat sleeps on the couch.", "Interest rates rose by two percent."]
    together = [entry["embedding"] for entry in server.post("/v1/embeddings", {"input": texts}).json()["data"]]
    apart = [server.post("/v1/embeddings", {"input": text}).json()["data"][0]["embedding"] for text in texts]
    assert together == apart, "to the last bit"
    assert {len(vector) for vector in together} == {576}

    def likeness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    cat, same, rates = together
    assert likeness(cat, cat) == pytest.approx(1, abs=1e-6)
    assert likeness(cat, same) > max(likeness(cat, rates), likeness(same, rates)) + 0.02
