"""A fleet of simulated pods behind real pickers: the gateway's own `Fleet` and policies, driven by a heap of events.

A pod is what acceptance line 4 of the gateway says: an LRU cache of blocks, one prefill at a time at a fixed rate, and
a fixed time an output token. A prompt's blocks hit when its prefill begins and are cached when it ends; generated
blocks take room while their request lasts.
"""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from octavo_operator.gateway.fleet import Fleet
from octavo_operator.gateway.types import Endpoint, Outcome, Policy, Sample, Wanted

BLOCK_TOKENS: Final = 512
BLOCKS: Final = 1000
PREFILL_TOKENS_PER_SECOND: Final = 8000.0
SECONDS_PER_TOKEN: Final = 0.02
ENOUGH_IN_FLIGHT: Final = 32
"""Spread is judged at instants with at least so many requests in flight."""
CLOCK_SECONDS: Final = 3.0
"""The trace's clock ticks every three seconds: all requests of a tick bear one time."""


class Arrival(NamedTuple):
    """A request: `at` in seconds, lengths in tokens, `blocks` the names of its full prompt blocks."""

    at: float
    number: int
    prompt: int
    output: int
    blocks: tuple[bytes, ...]


def read_trace(path: Path) -> list[Arrival]:
    """Return a Mooncake trace (`timestamp` in ms, lengths, `hash_ids` of 512-token blocks) as it was recorded."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Arrival(
            row["timestamp"] / 1000,
            number,
            row["input_length"],
            row["output_length"],
            tuple(name.to_bytes(8, "little") for name in row["hash_ids"][: row["input_length"] // BLOCK_TOKENS]),
        )
        for number, row in enumerate(rows)
    ]


def spread(arrivals: list[Arrival], seed: int | None) -> list[Arrival]:
    """Return the arrivals of each tick spread over the tick: evenly in their order, or by a seed at random."""
    ticks: dict[float, list[Arrival]] = {}
    for arrival in arrivals:
        ticks.setdefault(arrival.at, []).append(arrival)
    draw = Random(seed)
    moved = [
        arrival._replace(at=at + CLOCK_SECONDS * (place / len(tick) if seed is None else draw.random()))
        for at, tick in ticks.items()
        for place, arrival in enumerate(tick)
    ]
    return sorted(moved, key=lambda arrival: arrival.at)


@dataclass(frozen=True)
class Scenario:
    """What happens: `changes` are (second, pods from then on); `metrics_age` delays every scrape by so many seconds.

    `silent`, `frozen`, `lying` and `failing` name pods by their index: no metrics; a stuck engine whose metrics stay at
    idle; one that even ticks; one that answers every request with an error at once. With several pickers, requests
    come to them by turns (the worst for a conversation); `news` is how many seconds later they tell each other what
    they send, None if they never do.
    """

    name: str
    pods: int = 8
    pickers: int = 1
    changes: tuple[tuple[float, int], ...] = ()
    metrics_age: float = 0.0
    news: float | None = None
    silent: frozenset[int] = frozenset()
    frozen: frozenset[int] = frozenset()
    lying: frozenset[int] = frozenset()
    failing: frozenset[int] = frozenset()


@dataclass
class Result:
    """What came of a scenario under one policy."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    spreads: list[tuple[float, float]] = field(default_factory=list)
    """(largest over mean in flight, seconds it lasted) at instants with ENOUGH_IN_FLIGHT."""
    picks: list[tuple[float, int]] = field(default_factory=list)
    """(second, pod) of every pick."""

    def spread_p99(self) -> float:
        """Return the 99th percentile of largest over mean, by time."""
        total, passed = sum(seconds for _, seconds in self.spreads), 0.0
        for ratio, seconds in sorted(self.spreads):
            passed += seconds
            if passed >= 0.99 * total:
                return ratio
        return 0.0


class _Pod:
    """One engine: `in_flight` counts what was sent to it and has not ended."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.uid = f"pod-{index}"
        self.cache: OrderedDict[bytes, None] = OrderedDict()
        self.waiting: deque[Arrival] = deque()
        self.prefilling = False
        self.generating = 0
        self.generated_blocks = 0

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + self.prefilling + self.generating

    def hit(self, arrival: Arrival) -> int:
        """Return the prompt tokens that need no prefill; the last one always does."""
        count = 0
        for block in arrival.blocks:
            if block not in self.cache:
                break
            count += 1
        return min(count * BLOCK_TOKENS, arrival.prompt - 1)

    def keep(self, arrival: Arrival) -> None:
        """Cache a prompt, then evict: least recently used first, the ends of prompts before their beginnings."""
        for block in reversed(arrival.blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > BLOCKS - self.generated_blocks:
            self.cache.popitem(last=False)


def _generated_blocks(arrival: Arrival) -> int:
    return -(-arrival.output // BLOCK_TOKENS)


class Simulation:
    """One run. Events are (second, order, action): equal times happen in the order they were made."""

    def __init__(self, scenario: Scenario, policy: Callable[[], Policy], arrivals: Iterable[Arrival]) -> None:
        self.scenario = scenario
        self.result = Result()
        self.fleets = [Fleet(policy()) for _ in range(scenario.pickers)]
        self.pods: dict[str, _Pod] = {}
        self.live: list[_Pod] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._last = 0.0
        self._resize(scenario.pods)
        for at, count in scenario.changes:
            self._at(at, lambda now, count=count: self._resize(count))  # type: ignore[misc]
        self._ends = 0.0
        for arrival in arrivals:
            self._at(arrival.at, lambda now, arrival=arrival: self._arrive(arrival, now))  # type: ignore[misc]
            self._ends = max(self._ends, arrival.at)
        self._scrape(0.0, age=0.0)
        self._at(1.0, self._scrapes)

    def run(self) -> Result:
        """Run to the end and return what came of it."""
        while self._events:
            now, _, action = heapq.heappop(self._events)
            if now > self._last:
                self._measure(now - self._last)
                self._last = now
            action(now)
        return self.result

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, action))

    def _measure(self, seconds: float) -> None:
        counts = [pod.in_flight for pod in self.live if not self._sick(pod)]
        total = sum(counts)
        if total >= ENOUGH_IN_FLIGHT:
            self.result.spreads.append((max(counts) * len(counts) / total, seconds))

    def _sick(self, pod: _Pod) -> bool:
        scenario = self.scenario
        return pod.index in scenario.silent | scenario.frozen | scenario.lying | scenario.failing

    def _resize(self, count: int) -> None:
        """Add pods, or cordon the last: what they have goes on, nothing new comes."""
        for index in range(len(self.pods), count):
            pod = _Pod(index)
            self.pods[pod.uid] = pod
        cordoned = list(self.pods.values())[count:]
        self.live = list(self.pods.values())[:count]
        for fleet in self.fleets:
            fleet.update(
                Endpoint(pod.uid, f"10.0.0.{pod.index}:8000", cordoned=pod in cordoned) for pod in self.pods.values()
            )
        self._scrape(self._last, age=0.0)

    def _scrapes(self, now: float) -> None:
        self._scrape(now, self.scenario.metrics_age)
        if now < self._ends:
            self._at(now + 1.0, self._scrapes)

    def _scrape(self, now: float, age: float) -> None:
        for pod in self.pods.values():
            if pod.index in self.scenario.silent:
                continue
            stuck = pod.index in self.scenario.frozen | self.scenario.lying
            sample = Sample(
                uid=pod.uid,
                at=now,
                running=0 if stuck else pod.prefilling + pod.generating,
                waiting=0 if stuck else len(pod.waiting),
                total_blocks=BLOCKS,
                block_size=BLOCK_TOKENS,
                tick=0.0 if pod.index in self.scenario.frozen else now,
            )
            for fleet in self.fleets:
                self._at(now + age, lambda _, fleet=fleet, sample=sample: fleet.sampled(sample))  # type: ignore[misc]

    def _arrive(self, arrival: Arrival, now: float) -> None:
        fleet = self.fleets[arrival.number % len(self.fleets)]
        request_id = str(arrival.number)
        key = arrival.blocks[1] if len(arrival.blocks) > 1 else request_id.encode()
        wanted = Wanted(request_id, arrival.blocks, key=key)
        pick = fleet.pick(wanted, now)
        assert pick is not None
        pod = self.pods[pick.order[0].uid]
        fleet.begun(request_id, pod.uid, now)
        self.result.picks.append((now, pod.index))
        self._tell(fleet, now, lambda peer, later: peer.heard(wanted, pod.uid, later))
        if pod.index in self.scenario.failing:
            self._at(now + 0.001, lambda now: fleet.ended(request_id, now, Outcome.FAILED))
            return
        self.result.prompt_tokens += arrival.prompt
        pod.waiting.append(arrival)
        if pod.index not in self.scenario.frozen | self.scenario.lying:
            self._prefill(pod, now)

    def _prefill(self, pod: _Pod, now: float) -> None:
        if pod.prefilling or not pod.waiting:
            return
        arrival = pod.waiting.popleft()
        pod.prefilling = True
        hit = pod.hit(arrival)
        self.result.hit_tokens += hit
        seconds = (arrival.prompt - hit) / PREFILL_TOKENS_PER_SECOND
        self._at(now + seconds, lambda now: self._generate(pod, arrival, now))

    def _generate(self, pod: _Pod, arrival: Arrival, now: float) -> None:
        pod.prefilling = False
        pod.generating += 1
        pod.generated_blocks += _generated_blocks(arrival)
        pod.keep(arrival)
        fleet = self.fleets[arrival.number % len(self.fleets)]
        fleet.answered(str(arrival.number), now)
        self._tell(fleet, now, lambda peer, later: peer.answered(str(arrival.number), later))
        self._at(now + arrival.output * SECONDS_PER_TOKEN, lambda now: self._end(pod, arrival, now))
        self._prefill(pod, now)

    def _end(self, pod: _Pod, arrival: Arrival, now: float) -> None:
        pod.generating -= 1
        pod.generated_blocks -= _generated_blocks(arrival)
        fleet = self.fleets[arrival.number % len(self.fleets)]
        fleet.ended(str(arrival.number), now, Outcome.DONE)
        self._tell(fleet, now, lambda peer, later: peer.ended(str(arrival.number), later, Outcome.DONE))

    def _tell(self, teller: Fleet, now: float, news: Callable[[Fleet, float], None]) -> None:
        if self.scenario.news is None:
            return
        for peer in self.fleets:
            if peer is not teller:
                self._at(now + self.scenario.news, lambda later, peer=peer: news(peer, later))  # type: ignore[misc]


def one_cache(scenario: Scenario, arrivals: Iterable[Arrival]) -> int:
    """Return the hit tokens of one LRU cache of the fleet's size that every request finds complete at once.

    The best that one cache could be: no time passes before a prompt is cached, no generated block takes room.
    """
    cache: OrderedDict[bytes, None] = OrderedDict()
    sizes: deque[tuple[float, int]] = deque(scenario.changes)
    pods, hits = scenario.pods, 0
    for arrival in arrivals:
        while sizes and sizes[0][0] <= arrival.at:
            pods = sizes.popleft()[1]
        count = 0
        for block in arrival.blocks:
            if block not in cache:
                break
            count += 1
        hits += min(count * BLOCK_TOKENS, arrival.prompt - 1)
        for block in reversed(arrival.blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > pods * BLOCKS:
            cache.popitem(last=False)
    return hits
