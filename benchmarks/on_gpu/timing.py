"""How long work takes on a device: medians of CUDA events around replays of a graph, so that the host counts nothing.

In Triton's interpreter the same calls are timed once by the host's clock: what is printed then means nothing, but every
line of the benchmark has run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

SAMPLE_SECONDS: Final = 0.004
"""Length of one sample: short work is repeated within it, so that events' resolution does not matter."""
MOST_SAMPLES: Final = 50
HELD_CYCLES: Final = 40_000_000
"""For which a device sleeps while the host queues a step: about 20 ms, far more than it needs."""


def synchronize(device: torch.device) -> None:
    """Wait for all that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def usable(device: torch.device) -> bool:
    """Return whether the device still works for this process: after a fault in a kernel it never does again."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


def make_room(device: torch.device) -> None:
    """Give back what nobody refers to any more: to the next section it would look like a device that is full."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def seconds_of(run: Callable[[], Any], device: torch.device, seconds: float, *, graph: bool = True) -> float:
    """Return the median seconds of `run`, measured for about `seconds`.

    graph: it is captured once and replayed, as decode steps are; without, what the host takes to launch may count.
    What it reads should be larger than the device's cache, or be taken in turns.
    """
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    replay = _captured(run) if graph else _warmed(run)
    replay()
    single = max(_elapsed(replay, 1), 1e-7)
    repeats = max(1, int(SAMPLE_SECONDS / single))
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < 5 or (time.perf_counter() < deadline and len(samples) < MOST_SAMPLES):
        samples.append(_elapsed(replay, repeats) / repeats)
        if len(samples) >= 3 and time.perf_counter() > deadline:
            break
    return statistics.median(samples)


def _elapsed(run: Callable[[], Any], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _warmed(run: Callable[[], Any]) -> Callable[[], Any]:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    return run


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    # On a stream of its own first: kernels are compiled and loaded, libraries take their workspaces.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class DeviceTime:
    """The device's own time for what is queued inside `held`: all of it is queued before any of it begins."""

    def __init__(self, device: torch.device) -> None:
        """Nothing is measured yet."""
        self._cuda = device.type == "cuda"
        self._events: list[tuple[Any, Any]] = []
        self._host: list[float] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the device asleep while the host queues what is inside."""
        began = time.perf_counter()
        if not self._cuda:
            yield
            self._host.append(time.perf_counter() - began)
            return
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HELD_CYCLES)
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def __len__(self) -> int:
        """How many times."""
        return len(self._events) + len(self._host)

    def median(self) -> float:
        """Return the median in seconds; waits for the device."""
        for _, end in self._events:
            end.synchronize()
        return statistics.median([*(begin.elapsed_time(end) / 1000 for begin, end in self._events), *self._host])


def in_turn(count: int) -> Callable[[], int]:
    """Return a function that gives 0, 1 … count - 1, 0 … in turn."""
    place = [-1]

    def following() -> int:
        place[0] = (place[0] + 1) % count
        return place[0]

    return following
