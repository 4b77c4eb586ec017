"""What a seed promises: neighbours change nothing, siblings differ, the unseeded are nobody's copy (B13)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo_engine import contract
from tests.server.launch import Server, serving

SEEDED: dict[str, Any] = {"prompt": "once upon a time there was a prompt", "seed": 42, "temperature": 0.8}
TOKENS = 24
ROOMY = "scripted://?eos=0&blocks=512"
# Three sequences of about four blocks each fit: the others are preempted, again and again.
TIGHT = "scripted://?eos=0&step=1ms&blocks=12&max_len=128"


def texts(server: Server, body: dict[str, Any]) -> list[str]:
    answer = server.post(contract.PATH_COMPLETIONS, {"max_tokens": TOKENS, **body})
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def together(server: Server, *bodies: dict[str, Any]) -> list[list[str]]:
    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(lambda body: texts(server, body), bodies))


def unseeded(index: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": f"another prompt, number {index}", "temperature": 1.2, **fields}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    with serving(tmp_path_factory.mktemp("alone"), ROOMY, "--no-prefix-sharing") as server:
        [text] = texts(server, SEEDED)
    return text


@pytest.mark.parametrize(
    ("uri", "flags"),
    [
        (ROOMY, ()),
        (ROOMY, ("--max-num-batched-tokens", "16", "--max-num-seqs", "16")),
        (ROOMY, ("--speculation", "ngram")),
        (TIGHT, ("--max-num-seqs", "8")),
    ],
    ids=["roomy", "chunked", "drafted", "preempting"],
)
def test_b13_no_neighbour_changes_a_seeded_text(uri: str, flags: tuple[str, ...], alone: str, tmp_path: Path) -> None:
    with serving(tmp_path, uri, *flags) as server:
        assert texts(server, SEEDED) == [alone]
        assert texts(server, SEEDED) == [alone], "with its prompt cached"
        assert together(server, SEEDED, unseeded(0))[0] == [alone]
        crowd = [unseeded(n, **({"seed": n} if n % 2 else {}), max_tokens=40) for n in range(1, 8)]
        for _ in range(3):
            assert together(server, *crowd[:3], SEEDED, *crowd[3:])[3] == [alone]
        if uri == TIGHT:
            name = "octavo_preemptions_total"
            assert server.metrics(name)[name] > 0, "nothing was preempted: the pool is not tight"


def test_b13_choices_differ_and_are_the_same_set_each_time(server: Server, alone: str) -> None:
    first, again = texts(server, {**SEEDED, "n": 4}), texts(server, {**SEEDED, "n": 4})
    assert first == again
    assert len(set(first)) == 4
    assert first[0] == alone


def test_b13_requests_without_a_seed_differ(server: Server) -> None:
    body = {**SEEDED, "seed": None, "temperature": 1.5}
    found = together(server, *(body,) * 4)
    assert len({text for [text] in found}) == 4


def test_b13_seed_0_is_a_seed(server: Server) -> None:
    body = {**SEEDED, "seed": 0, "temperature": 1.5}
    assert texts(server, body) == texts(server, body)
    unset = [texts(server, {**body, "seed": None}) for _ in range(3)]
    assert texts(server, body) not in unset
