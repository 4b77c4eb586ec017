"""Streaming clients on an event loop of their own, each remembering all that it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from octavo_engine import contract
from tests.cluster.waiting import wait_until

DEADLINE_SECONDS: Final = 600.0


@dataclass
class Stream:
    """One streamed completion. `text` grows as it comes; `status` 0 means that no answer has begun."""

    url: str
    max_tokens: int
    status: int = 0
    text: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None
    terminated: bool = False
    error: str = ""
    asked_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    gaps: list[float] = field(default_factory=list, repr=False)

    @property
    def began(self) -> bool:
        return bool(self.text)

    @property
    def whole(self) -> bool:
        """It ended with its finish reason and `[DONE]`, and every token that was asked for is there."""
        ended = self.finish_reason == "length" and self.terminated and not self.error
        return self.status == httpx.codes.OK and ended and self.completion_tokens == self.max_tokens


class Load:
    """Clients that reach Services and pods through the cluster's proxy."""

    def __init__(self, proxy_url: str) -> None:
        """Nothing runs before `with`."""
        self._proxy_url = proxy_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="load", daemon=True)
        self._client: httpx.AsyncClient | None = None
        self._running: list[Future[None]] = []

    def __enter__(self) -> Load:
        self._thread.start()
        self._submit(self._open()).result()
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._running:
            future.cancel()
        self._submit(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stream(self, url: str, count: int = 1, **body: Any) -> list[Stream]:
        """Start `count` streams at once; each prompt begins differently, so that none is another's prefix."""
        streams = [Stream(url, body.get("max_tokens", 16)) for _ in range(count)]
        for number, stream in enumerate(streams):
            self._start(self._read(stream, _body(number, body)))
        return streams

    def keep(self, url: str, clients: int, stop: threading.Event, **body: Any) -> list[Stream]:
        """Let each of `clients` ask again as soon as it was answered, until `stop`; the list grows."""
        streams: list[Stream] = []

        async def client(number: int) -> None:
            turn = 0
            while not stop.is_set():
                stream = Stream(url, body.get("max_tokens", 16))
                streams.append(stream)
                await self._read(stream, _body(number + clients * turn, body))
                turn += 1
                if not stream.whole:
                    await asyncio.sleep(0.2)  # a refusal comes at once: no busy loop

        for number in range(clients):
            self._start(client(number))
        return streams

    def get(self, url: str) -> httpx.Response:
        """One plain request."""
        return httpx.get(url, proxy=self._proxy_url, timeout=30)

    def status_of(self, url: str) -> int:
        """Return the status with which a short completion is answered."""
        [stream] = self.stream(url, max_tokens=1)
        finish([stream], 30)
        return stream.status

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._running.append(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(proxy=self._proxy_url, limits=limits, timeout=DEADLINE_SECONDS)

    async def _close(self) -> None:
        await asyncio.gather(*(asyncio.wrap_future(f) for f in self._running), return_exceptions=True)
        assert self._client is not None
        await self._client.aclose()

    async def _read(self, stream: Stream, body: dict[str, Any]) -> None:
        assert self._client is not None
        try:
            async with self._client.stream("POST", stream.url + contract.PATH_COMPLETIONS, json=body) as response:
                stream.status = response.status_code
                if response.status_code != httpx.codes.OK:
                    stream.error = (await response.aread()).decode(errors="replace")[:500]
                    return
                await _take(stream, response)
        except httpx.HTTPError as error:
            stream.error = f"{type(error).__name__}: {error}"
        finally:
            stream.ended_at = time.monotonic()


async def _take(stream: Stream, response: httpx.Response) -> None:
    last = time.monotonic()
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            stream.terminated = True
            continue
        now = time.monotonic()
        stream.gaps.append(now - last)
        last = now
        event = json.loads(data)
        if "error" in event:
            stream.error = json.dumps(event["error"])
        for choice in event.get("choices", []):
            stream.text += choice["text"]
            stream.finish_reason = choice["finish_reason"] or stream.finish_reason
        if usage := event.get("usage"):
            stream.completion_tokens = usage["completion_tokens"]


def _body(number: int, body: dict[str, Any]) -> dict[str, Any]:
    prompt = f"{number:04d} " + body.get("prompt", "Once upon a time")
    options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return {**options, **body, "prompt": prompt}


def finish(streams: list[Stream], seconds: float = 300) -> None:
    """Wait until every stream has ended."""
    wait_until(lambda: all(stream.ended_at for stream in streams), seconds, "every stream ended", blame=_tell(streams))


def begin(streams: list[Stream], seconds: float = 60) -> None:
    """Wait until every stream has its first token."""
    wait_until(lambda: all(s.began or s.ended_at for s in streams), seconds, "every stream began", blame=_tell(streams))


def broken(streams: list[Stream]) -> list[Stream]:
    """Return those that did not end whole."""
    return [stream for stream in streams if not stream.whole]


def _tell(streams: list[Stream]) -> Callable[[], str]:
    return lambda: "\n".join(repr(stream)[:300] for stream in streams if not stream.ended_at)
