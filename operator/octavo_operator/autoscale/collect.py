"""Scrape the pods: the thin edge of the autoscaler. What is not certainly true is no sample.

A sample is *stale* if the engine's loop stands still while its API process still answers. The loop's own timestamp
(`octavo_last_step_timestamp_seconds`) is never compared with the operator's clock, which may be minutes off the node's:
(1) it must move between scrapes: standing still for longer than `STALE_SECONDS` of *our* clock is stale, whatever it
says; (2) within one scrape it is compared with the response's `Date` header, which the same pod's clock wrote; (3) a
first scrape without that header proves nothing and waits for a second one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine import contract

from .types import KVBlocks, Pod, PodSample, PodState, Queue, Scrape, ScrapeFailure

STALE_SECONDS: Final = 30.0
"""Three scrape periods of 10 s: the engine's loop ticks at least once a second when idle."""
MAX_CONCURRENT_SCRAPES: Final = 32
MAX_BODY_BYTES: Final = 256 * 1024
"""A filtered answer has about 1 KB, an unfiltered one about 30: more is not an engine's."""


class InvalidMetrics(ValueError):
    """The text is no usable sample; the message says which series is at fault."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of one `/metrics` text, before it is known whether they are fresh."""

    kv: KVBlocks | None
    queue: Queue | None
    last_step: float


def read_metrics(text: str) -> Reading:
    """Return the reading of a Prometheus text.

    A signal with a missing, renamed, negative or non-finite series is None. Raises `InvalidMetrics` if the text cannot
    be parsed, if the loop's timestamp is missing, or if neither signal is valid.
    """
    values = _values(text)
    last_step = values.get((contract.LAST_STEP_TIMESTAMP.name, ""))
    if last_step is None:
        raise InvalidMetrics(f"{contract.LAST_STEP_TIMESTAMP.name} is missing or not a number")
    states = [values.get((contract.KV_BLOCKS.name, state)) for state in KVBlocks._fields]
    active, cached, free = states
    kv = None
    if active is not None and cached is not None and free is not None and active + cached + free >= 1:
        kv = KVBlocks(round(active), round(cached), round(free))
    running, waiting, tokens, oldest = (
        values.get((metric.name, ""))
        for metric in (
            contract.REQUESTS_RUNNING,
            contract.QUEUE_DEPTH,
            contract.QUEUE_TOKENS,
            contract.QUEUE_OLDEST_SECONDS,
        )
    )
    queue = None
    if running is not None and waiting is not None and tokens is not None and oldest is not None:
        queue = Queue(round(running), round(waiting), round(tokens), round(oldest * 1000))
    if kv is None and queue is None:
        raise InvalidMetrics(f"neither {contract.KV_BLOCKS.name} nor {contract.QUEUE_DEPTH.name} has valid values")
    return Reading(kv, queue, last_step)


def _values(text: str) -> dict[tuple[str, str], float]:
    """Return {(series, value of its `state` label or ""): value} of the finite, non-negative values in `text`."""
    values: dict[tuple[str, str], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value) and sample.value >= 0:
                    values[sample.name, sample.labels.get("state", "")] = sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidMetrics(f"the answer is no Prometheus text: {error}") from error
    return values


@dataclass(frozen=True, slots=True)
class Tick:
    """The last timestamp a pod's loop showed, when we first saw that one, and whether an earlier one was seen."""

    last_step: float
    since: float
    moved: bool


def judge_freshness(
    tick: Tick | None, reading: Reading, pod_clock: float | None, now: float
) -> tuple[Tick, str | None]:
    """Return the pod's new `Tick`, and why the reading is stale (None: it is fresh).

    `pod_clock` is the pod's own time when it answered, `now` ours; they are never compared with each other.
    """
    if tick is None or tick.last_step != reading.last_step:
        tick = Tick(reading.last_step, now, moved=tick is not None)
    standing = now - tick.since
    if standing > STALE_SECONDS:
        return tick, f"the engine's loop has stood still for {standing:.0f} s"
    if pod_clock is not None and pod_clock - reading.last_step > STALE_SECONDS:
        return tick, f"the engine's last step is {pod_clock - reading.last_step:.0f} s old by the pod's own clock"
    if pod_clock is None and not tick.moved:
        return tick, "one scrape without a Date header does not show whether the engine's loop moves"
    return tick, None


class Collector:
    """Scrapes pods over one connection pool; remembers of each pod only how its loop's timestamp moved."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        port: int = contract.PORT_HTTP,
        concurrency: int = MAX_CONCURRENT_SCRAPES,
        timeout_seconds: float = contract.SCRAPE_TIMEOUT_SECONDS,
    ) -> None:
        self._clock = clock
        self._port = port
        self._limit = asyncio.Semaphore(concurrency)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None
        self._ticks: dict[str, Tick] = {}

    async def __aenter__(self) -> Collector:
        # No proxy from the environment, no redirect: a scrape goes to the pod's own address or nowhere.
        self._session = aiohttp.ClientSession(trust_env=False, auto_decompress=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def collect(self, pods: Sequence[Pod]) -> dict[str, Scrape]:
        """Return the scrape of every pod that has an address and may carry requests, by UID. Never raises for a pod."""
        scraped = [pod for pod in pods if pod.ip and pod.state in (PodState.READY, PodState.STARTING)]
        results = await asyncio.gather(*(self._scrape(pod) for pod in scraped))
        return {result.uid: result for result in results}

    def forget(self, live_uids: Iterable[str]) -> None:
        """Drop what is remembered of pods that are not in `live_uids` (of every service this collector scrapes)."""
        live = set(live_uids)
        self._ticks = {uid: tick for uid, tick in self._ticks.items() if uid in live}

    async def _scrape(self, pod: Pod) -> Scrape:
        try:
            async with self._limit:
                text, pod_clock = await self._get(pod)
            reading = read_metrics(text)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError, InvalidMetrics) as error:
            return ScrapeFailure(pod.uid, self._clock(), f"{type(error).__name__}: {error}".rstrip(": "))
        now = self._clock()
        self._ticks[pod.uid], stale = judge_freshness(self._ticks.get(pod.uid), reading, pod_clock, now)
        if stale is not None:
            return ScrapeFailure(pod.uid, now, stale)
        return PodSample(pod.uid, now, reading.kv, reading.queue)

    async def _get(self, pod: Pod) -> tuple[str, float | None]:
        assert self._session is not None, "enter the collector's context before collecting"
        host = f"[{pod.ip}]" if pod.ip and ":" in pod.ip else pod.ip
        url = f"http://{host}:{self._port}{contract.PATH_METRICS}"
        names = [("name[]", name) for name in contract.SCRAPED_BY_AUTOSCALER]
        async with self._session.get(url, params=names, timeout=self._timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise InvalidMetrics(f"HTTP status {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise InvalidMetrics(f"the answer is longer than {MAX_BODY_BYTES} bytes")
            return body.decode(), _date(response.headers)


def _date(headers: Mapping[str, str]) -> float | None:
    """Return the response's `Date` in Unix seconds, or None if there is no legible one."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return None
