"""Clients of every kind a server meets: some read their answer, others leave, dawdle, ask too much, or bring poison.

Each kind is a coroutine that does one thing once and returns a word for how it went. What must not happen raises Wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from octavo_engine import contract

from .wire import Answer, Broken, Wire, ask, request_bytes

NAN_TOKEN: Final = 200
"""A sequence with it has logits that are not finite: it fails alone."""
RAISE_TOKEN: Final = 201
"""A step that computes it raises: whoever shares the step fails with it."""
MODEL: Final = f"scripted://?step=2ms&blocks=512&eos=0.02&nan={NAN_TOKEN}&raise={RAISE_TOKEN}"
CONTEXT: Final = 1024
"""Tokens, of which the model has one a byte."""
ENGINE_ERROR: Final = "engine_error"
REFUSED: Final = 429
SLOW_BYTES, SLOW_SECONDS, SLOW_READS = 200, 0.05, 40
WORDS: Final = "the quick brown fox jumps over the lazy dog "


class Wrong(Exception):
    """Something that must never happen; the message says what."""


Act = Callable[[int, random.Random], Awaitable[str]]


def body(draw: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return a path and a valid body for it, of no kind in particular."""
    text = (WORDS * 12)[: draw.randint(1, 400)]
    asked: dict[str, Any] = {
        "max_tokens": draw.choice([1, 8, 40, 120]),
        "temperature": draw.choice([0, 0.7, 1.3]),
        "seed": draw.randint(0, 9),
        "n": draw.choice([1, 1, 1, 2, 4]),
        "stream": draw.random() < 0.6,
    }
    optional: tuple[dict[str, Any], ...] = (
        {"stop": ["e", "th"]},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
        {"guided_regex": draw.choice(["[a-z]{3,30}", "(yes|no)( maybe)*", "[0-9]+\\.[0-9]{2}"])},
        {"response_format": {"type": "json_object"}},
        {"priority": draw.randint(-2, 2), "cache_salt": draw.choice("abc")},
        {"ignore_eos": True, "min_tokens": 1},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
    )
    for some in draw.sample(optional, draw.choice([0, 0, 1, 2])):
        asked |= some
    if "guided_regex" in asked:
        asked.pop("response_format", None)
    if draw.random() < 0.5:
        asked |= {"messages": [{"role": "user", "content": text}], "logprobs": draw.random() < 0.3}
        return contract.PATH_CHAT_COMPLETIONS, asked | fields
    asked |= {"prompt": text, "logprobs": draw.choice([None, None, 0, 3])}
    return contract.PATH_COMPLETIONS, asked | fields


def _check(answer: Answer, choices: int) -> str:
    """Return how an answer to a valid request went. Raises Wrong for what no valid request may get."""
    if answer.status == REFUSED:
        return "refused"
    if fault := answer.fault(choices):
        raise Wrong(fault)
    if answer.error:
        if answer.error != ENGINE_ERROR:
            raise Wrong(f"status {answer.status}, error '{answer.error}': {answer.body}")
        return "failed beside poison"
    return "answered"


async def reads(port: int, draw: random.Random) -> str:
    """Ask for something and read all of it."""
    path, asked = body(draw)
    return _check(await ask(port, path, asked), asked["n"])


async def tokenises(port: int, draw: random.Random) -> str:
    """Have a text made tokens, of any length that is read at all."""
    text = WORDS * draw.choice([1, 20, 2000])
    answer = await ask(port, contract.PATH_TOKENIZE, {"prompt": text})
    if len(text) >= CONTEXT:
        return _refused(answer, 400)
    if answer.status != 200 or answer.body["count"] != len(text):
        raise Wrong(f"a text of {len(text)} bytes was answered {answer.status}: {answer.body}")
    return "answered"


async def leaves(port: int, draw: random.Random) -> str:
    """Leave after a while, or after the first bytes."""
    path, asked = body(draw, stream=draw.random() < 0.8, max_tokens=200, ignore_eos=True)
    wire = await Wire.open(port)
    try:
        await wire.send(request_bytes(path, json.dumps(asked).encode()))
        if draw.random() < 0.5:
            await wire.read_some(draw.randint(1, 2000))
        else:
            await asyncio.sleep(draw.uniform(0, 0.3))
    finally:
        wire.close()
    return "left"


async def vanishes(port: int, draw: random.Random) -> str:
    """Send a part of a request, and be gone."""
    path, asked = body(draw)
    data = request_bytes(path, json.dumps(asked).encode())
    wire = await Wire.open(port)
    try:
        await wire.send(data[: draw.randint(0, len(data))])
        await asyncio.sleep(draw.choice([0, 0, 0.05]))
    finally:
        wire.close()
    return "vanished"


async def dawdles(port: int, draw: random.Random) -> str:
    """Read a long answer a few bytes at a time for a while; then leave, or read the rest."""
    path, asked = body(draw, stream=True, n=2, max_tokens=300, ignore_eos=True, logprobs=None)
    wire = await Wire.open(port, slow=True)
    try:
        await wire.send(request_bytes(path, json.dumps(asked).encode()))
        for _ in range(draw.randint(1, SLOW_READS)):
            if not await wire.read_some(SLOW_BYTES):
                break
            await asyncio.sleep(SLOW_SECONDS)
        while draw.random() < 0.9 and await wire.read_some(1 << 16):
            continue
    finally:
        wire.close()
    return "dawdled"


async def oversizes(port: int, draw: random.Random) -> str:
    """Ask for more than anybody gets."""
    path, asked = body(draw, stream=False)
    text = {"prompt": WORDS * 1000} if "prompt" in asked else {"messages": [{"role": "user", "content": WORDS * 1000}]}
    too_much: tuple[dict[str, Any], ...] = (
        text,
        {"n": 10_000},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"max_tokens": 2**31},
        {"logit_bias": {str(token): 1 for token in range(2000)}},
    )
    kind = draw.randrange(len(too_much) + 2)
    if kind == len(too_much):
        return await _declares_too_much(port, path)
    if kind > len(too_much):
        return await _sends_a_long_head(port, path)
    answer = await ask(port, path, asked | too_much[kind])
    return _refused(answer, 400)


async def _declares_too_much(port: int, path: str) -> str:
    wire = await Wire.open(port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: octavo\r\nContent-Type: application/json\r\n"
        await wire.send(f"{head}Content-Length: {contract.MAX_BODY_BYTES + 1}\r\n\r\n".encode() + b"{" * 1000)
        return _refused(await wire.answer(), 413)
    finally:
        wire.close()


async def _sends_a_long_head(port: int, path: str) -> str:
    """A server may close before it has read all of it, which costs the answer."""
    wire = await Wire.open(port)
    try:
        await wire.send(request_bytes(path, b"{}", "x-long: " + "x" * 200_000))
        answer = await wire.answer()
    except (Broken, OSError):
        return "cut off"
    finally:
        wire.close()
    if answer.status not in (400, REFUSED):
        raise Wrong(f"a head of 200 kB was answered {answer.status}")
    return "refused as it must be"


async def babbles(port: int, draw: random.Random) -> str:
    """Send what is no request of this API."""
    path, asked = body(draw)
    texts: tuple[bytes, ...] = (
        b"",
        b"{",
        b"[1, 2]",
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "\\ud800", "messages": "\\ud800"}',
        b"\xff\xfe{}",
        json.dumps({**asked, "temperature": "hot"}).encode(),
        json.dumps({**asked, "n": -1}).encode(),
        json.dumps({**asked, "guided_regex": "a[", "response_format": None}).encode(),
    )
    wire = await Wire.open(port)
    try:
        await wire.send(request_bytes(path, draw.choice(texts)))
        return _refused(await wire.answer(), 400)
    finally:
        wire.close()


async def poisons(port: int, draw: random.Random) -> str:
    """Bring a token that breaks the computation: of this request alone, or, more rarely, of its whole step."""
    token = RAISE_TOKEN if draw.random() < 0.02 else NAN_TOKEN
    asked = {"prompt": [97, token, 98], "max_tokens": 5, "stream": draw.random() < 0.5}
    answer = await ask(port, contract.PATH_COMPLETIONS, asked)
    if answer.status == REFUSED:
        return "refused"
    if answer.error != ENGINE_ERROR:
        raise Wrong(f"poison was answered {answer.status}, error '{answer.error}', {answer.finish}")
    return "failed as it must"


def _refused(answer: Answer, status: int) -> str:
    if answer.status == REFUSED:
        return "refused"
    if answer.status != status or not answer.error:
        raise Wrong(f"answered {answer.status} instead of {status}: {answer.body}")
    return "refused as it must be"


ACTS: Final[dict[str, tuple[Act, int]]] = {
    "reads": (reads, 40),
    "tokenises": (tokenises, 6),
    "leaves": (leaves, 20),
    "vanishes": (vanishes, 10),
    "dawdles": (dawdles, 6),
    "oversizes": (oversizes, 8),
    "babbles": (babbles, 8),
    "poisons": (poisons, 4),
}
"""Each with how often it comes, beside the others'."""


async def act(port: int, draw: random.Random) -> tuple[str, str]:
    """Do one thing of a kind drawn by weight; return kind and how it went. Raises Wrong."""
    names = list(ACTS)
    (name,) = draw.choices(names, [weight for _, weight in ACTS.values()])
    try:
        return name, await ACTS[name][0](port, draw)
    except (Broken, OSError) as error:
        raise Wrong(f"{name}: the server broke the connection off: {error}") from error
    except Wrong as error:
        raise Wrong(f"{name}: {error}") from error
