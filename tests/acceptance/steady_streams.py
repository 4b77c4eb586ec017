"""Four seeded streams, over and over: whatever goes on beside them, each says what it says in quiet."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, NamedTuple, Self

from octavo_engine import contract
from tests.server.launch import Server, events

_CHAT = {"messages": [{"role": "user", "content": "Tell me of the sea, and of the ships on it."}]}
STREAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    (contract.PATH_COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0.9, "logprobs": 3}),
    (contract.PATH_CHAT_COMPLETIONS, {**_CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 4}),
    (
        contract.PATH_COMPLETIONS,
        {"prompt": "The ship", "temperature": 1.1, "n": 2, "logprobs": 0, "frequency_penalty": 0.8, "top_p": 0.95},
    ),
    (
        contract.PATH_COMPLETIONS,
        {"prompt": "Number:", "temperature": 1, "logprobs": 1, "guided_regex": "[0-9]{20}( [a-z]{2,9}){4}"},
    ),
)
_EVERY = {"max_tokens": 60, "seed": 2026, "stream": True, "stream_options": {"include_usage": True}}
RETRY_SECONDS = 0.05


class Told(NamedTuple):
    """What a client was told, whatever chunks it came in; by choice, in order.

    `logprobs` are the choices' lists of OpenAI's, joined. `usage` is prompt, completion and total tokens: how many
    were found in the cache is the company's doing by its nature.
    """

    texts: tuple[str, ...]
    logprobs: tuple[str, ...]
    finish: tuple[str, ...]
    usage: tuple[int, int, int]

    def difference(self, other: Told) -> str:
        """Name the parts that differ, nothing if they are the same."""
        parts = (name for name in self._fields if getattr(self, name) != getattr(other, name))
        return "; ".join(f"{name}: {getattr(self, name)} became {getattr(other, name)}" for name in parts)


class Interrupted(Exception):
    """The stream did not end as one must; the message says how."""


def told(stream: list[Any]) -> Told:
    """Join a stream's events. Raises Interrupted."""
    texts: dict[int, str] = defaultdict(str)
    logprobs: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    finish: dict[int, str] = {}
    usage = None
    for event in stream:
        if event == "[DONE]":
            continue
        if "error" in event:
            raise Interrupted(f"an error: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            for name, values in (choice.get("logprobs") or {}).items():
                logprobs[index][name] += values or []
            if choice["finish_reason"] is not None:
                finish[index] = choice["finish_reason"]
    if usage is None or finish.keys() != texts.keys() or stream[-1] != "[DONE]":
        raise Interrupted("it ended without finish reason, usage or [DONE]")
    order = sorted(texts)
    return Told(
        tuple(texts[index] for index in order),
        tuple(json.dumps(logprobs[index], sort_keys=True) for index in order),
        tuple(finish[index] for index in order),
        (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]),
    )


def listen(server: Server, path: str, fields: dict[str, Any]) -> Told | None:
    """Take one stream to its end; None if the server was too busy to begin it. Raises Interrupted."""
    with server.client() as client, client.stream("POST", path, json={**fields, **_EVERY}) as answer:
        if answer.status_code == 429:
            return None
        if answer.status_code != 200:
            raise Interrupted(f"status {answer.status_code}: {answer.read()[:300]!r}")
        return told(list(events(answer)))


class SteadyStreams:
    """As a context manager: the streams run until it is left. What they said in quiet is known before."""

    def __init__(self, server: Server) -> None:
        """Listen to each stream twice, in quiet. Raises Interrupted if it does not say the same then."""
        self._server = server
        self.quiet = [listen(server, *stream) for stream in STREAMS]
        if None in self.quiet or [listen(server, *stream) for stream in STREAMS] != self.quiet:
            raise Interrupted("a stream does not repeat itself in quiet")
        self.ended = [0] * len(STREAMS)
        self.busy = 0
        """Times a stream was refused with 429."""
        self.faults: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(len(STREAMS))]

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let each stream end."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        while not self._over.is_set():
            try:
                heard = listen(self._server, *STREAMS[index])
            except Exception as error:  # noqa: BLE001 - whatever breaks a stream is what is looked for
                self.faults.append(f"stream {index}: {type(error).__name__}: {error}")
                time.sleep(RETRY_SECONDS)
                continue
            if heard is None:
                self.busy += 1
                time.sleep(RETRY_SECONDS)
                continue
            self.ended[index] += 1
            if difference := self.quiet[index].difference(heard):
                self.faults.append(f"stream {index}: {difference}")
