"""Load over HTTP on any server that speaks OpenAI's completions: requests at their arrival times, or N clients at once.

Open loop (arrivals) is how users come: they do not wait for the server to be ready for them. Closed loop (clients)
finds what the server can do at all.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from octavo_engine import contract
from octavo_engine.bench.http_stream import Address, Answer, Connection, StreamError, connect, parse_url, request_bytes
from octavo_engine.bench.workload import Item

PROBE_EVERY_SECONDS: Final = 0.1
REQUEST_SECONDS: Final = 600.0
FIRST_ANSWER_SECONDS: Final = 10.0
"""For the list of models, before anything is measured."""

Tell = Callable[[int, int], None]
"""Called with requests ended and requests in all."""


class Outcome(msgspec.Struct, frozen=True):
    """One request. Seconds; a failed one (`error`) has infinite times, so that no percentile forgets it."""

    arrival: float
    """When it was sent, since the run's begin."""
    late: float
    """How much later it was sent than it was due: the load generator's own delay."""
    ttft: float
    itl: list[float]
    e2e: float
    prompt_tokens: int
    output_tokens: int
    error: str = ""

    @property
    def mean_itl(self) -> float:
        """Seconds per further message: 0 for an answer in one message, infinite for a failure."""
        return sum(self.itl) / len(self.itl) if self.itl else 0.0


class LoadResult(msgspec.Struct, frozen=True):
    """A run. `health` are the seconds each probe took, infinite where it failed."""

    seconds: float
    outcomes: list[Outcome]
    health: list[float]
    client_cpu_seconds: float

    @property
    def failed(self) -> int:
        """Requests that did not end as they must."""
        return sum(bool(outcome.error) for outcome in self.outcomes)

    @property
    def first_error(self) -> str:
        """Why the first of them failed, on one line; empty if none did."""
        return next((" ".join(outcome.error.split()) for outcome in self.outcomes if outcome.error), "")

    @property
    def output_tokens(self) -> int:
        """Tokens of the requests that ended well."""
        return sum(outcome.output_tokens for outcome in self.outcomes if not outcome.error)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of the requests that ended well."""
        return sum(outcome.prompt_tokens for outcome in self.outcomes if not outcome.error)

    @property
    def total_rate(self) -> float:
        """Prompt and output tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds

    @property
    def request_rate(self) -> float:
        """Requests that ended well, a second."""
        return (len(self.outcomes) - self.failed) / self.seconds


class LoadError(RuntimeError):
    """Requests failed that must not; the message is one sentence."""


def failures(load: LoadResult) -> str:
    """Return how many requests failed and why, in one sentence; empty if none did."""
    if not load.failed:
        return ""
    whole = len(load.outcomes)
    if load.failed < whole:
        return f"{load.failed} of {whole} requests failed, the first because {load.first_error}."
    which = "The one request" if whole == 1 else f"Every one of the {whole} requests"
    return f"{which} failed{'' if whole == 1 else ', the first'} because {load.first_error}."


class Target(msgspec.Struct, frozen=True):
    """A server, the model's name there, and what each request says beside prompt and length."""

    url: str
    model: str
    api_key: str = ""
    extra: dict[str, Any] = {}
    """Further members of the request's body, for servers that want them."""

    def body(self, item: Item) -> bytes:
        """Return the body of one streamed, greedy request of a fixed output length."""
        return msgspec.json.encode(
            {
                "model": self.model,
                "prompt": item.prompt,
                "max_tokens": item.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self.extra,
            }
        )


async def drive(
    target: Target, items: Sequence[Item], *, clients: int = 0, probe: bool = True, tell: Tell | None = None
) -> LoadResult:
    """Send the items, by `clients` that each send one after the other, or with 0 at the items' arrivals.

    Raises ValueError for an address that is none, OSError if nobody answers there; what happens to a request later is
    its outcome.
    """
    address = parse_url(target.url)
    connections = _Connections(address)
    connections.give_back(await connect(address))
    # Made before the clock starts: what a request weighs is not the server's time.
    requests = [
        request_bytes(address, "POST", contract.PATH_COMPLETIONS, target.body(item), target.api_key) for item in items
    ]
    run = _Run(items, requests, connections, tell)
    prober = asyncio.create_task(_probe(address, run.health)) if probe else None
    cpu, run.began = time.process_time(), time.perf_counter()
    try:
        await (run.closed_loop(clients) if clients else run.open_loop())
        seconds = time.perf_counter() - run.began
    finally:
        if prober is not None:
            prober.cancel()
            await asyncio.gather(prober, return_exceptions=True)
        connections.close()
    return LoadResult(seconds, [outcome for outcome in run.outcomes if outcome], run.health, time.process_time() - cpu)


async def first_model(url: str, api_key: str = "") -> str:
    """Return the name of the first model a server lists. Raises ValueError, OSError, StreamError."""
    address = parse_url(url)
    try:
        async with asyncio.timeout(FIRST_ANSWER_SECONDS):
            connection = await connect(address)
            try:
                answer = await connection.request(request_bytes(address, "GET", contract.PATH_MODELS, api_key=api_key))
            finally:
                connection.close()
    except TimeoutError as error:
        raise ValueError(f"{url} does not answer within {FIRST_ANSWER_SECONDS:.0f} s: is it an HTTP server?") from error
    try:
        return str(msgspec.json.decode(answer.body)["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise ValueError(f"{url} lists no model (it answered {answer.status}): name it with --model.") from error


class _Connections:
    """Idle connections to one server, the one used last first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []

    async def take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return await connect(self._address)

    def give_back(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


class _Run:
    def __init__(
        self, items: Sequence[Item], requests: Sequence[bytes], connections: _Connections, tell: Tell | None
    ) -> None:
        self._items = items
        self._requests = requests
        self._connections = connections
        self._tell = tell
        self._ended = 0
        self.began = 0.0
        self.outcomes: list[Outcome | None] = [None] * len(items)
        self.health: list[float] = []

    async def open_loop(self) -> None:
        """Send each at its arrival, whatever has become of the others."""
        async with asyncio.TaskGroup() as group:
            for index, item in enumerate(self._items):
                due = self.began + item.arrival
                wait = due - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                group.create_task(self._one(index, due))

    async def closed_loop(self, clients: int) -> None:
        """Let each client send the next item when its last one has ended."""
        rest = iter(range(len(self._items)))
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(rest))

    async def _client(self, rest: Iterator[int]) -> None:
        for index in rest:
            await self._one(index, time.perf_counter())

    async def _one(self, index: int, due: float) -> None:
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = await self._exchange(self._requests[index])
            _assert_whole(answer, self._items[index].max_tokens)
            self.outcomes[index] = self._outcome(self._items[index], due, answer)
        except (OSError, StreamError, TimeoutError) as error:
            reason = str(error) or f"no answer within {REQUEST_SECONDS:.0f} s"
            self.outcomes[index] = self._failed(self._items[index], sent, due, reason)
        self._ended += 1
        if self._tell is not None:
            self._tell(self._ended, len(self._items))

    async def _exchange(self, request: bytes) -> Answer:
        connection = await self._connections.take()
        try:
            answer = await connection.request(request)
        except BaseException:
            connection.close()
            raise
        self._connections.give_back(connection)
        if answer.status != 200:
            text = answer.body[:300].decode(errors="replace")
            raise StreamError(f"the server answered {answer.status}: {text}")
        if not answer.streamed:
            raise StreamError("the server answered with no event stream, which was asked for")
        return answer

    def _outcome(self, item: Item, due: float, answer: Answer) -> Outcome:
        times = answer.times or [answer.ended]
        return Outcome(
            arrival=answer.sent - self.began,
            late=answer.sent - due,
            ttft=times[0] - due,
            itl=[after - before for before, after in itertools.pairwise(times)],
            e2e=answer.ended - due,
            prompt_tokens=len(item.prompt),
            output_tokens=answer.output_tokens,
        )

    def _failed(self, item: Item, sent: float, due: float, reason: str) -> Outcome:
        return Outcome(sent - self.began, sent - due, math.inf, [math.inf], math.inf, len(item.prompt), 0, reason)


def _assert_whole(answer: Answer, max_tokens: int) -> None:
    """Raise StreamError for an answer of fewer tokens than were asked for: it did less than it is measured for."""
    if answer.counted and answer.output_tokens < max_tokens:
        raise StreamError(
            f"the answer ended after {answer.output_tokens} of {max_tokens} tokens: the server must take ignore_eos, "
            "and have the context for them"
        )


async def _probe(address: Address, seconds: list[float]) -> None:
    """Ask `/health` again and again, each time over its own connection, as a kubelet does."""
    request = request_bytes(address, "GET", contract.PATH_HEALTH)
    while True:
        began = time.perf_counter()
        seconds.append(await _asked(address, request, began))
        await asyncio.sleep(max(0.0, began + PROBE_EVERY_SECONDS - time.perf_counter()))


async def _asked(address: Address, request: bytes, began: float) -> float:
    connection: Connection | None = None
    try:
        connection = await connect(address)
        answer = await connection.request(request)
    except (OSError, StreamError):
        return math.inf
    finally:
        if connection is not None:
            connection.close()
    return time.perf_counter() - began if answer.status == 200 else math.inf
