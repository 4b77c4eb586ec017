"""Scrapes against a real server on loopback: slow, broken, partial and lying answers are no samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest
from aiohttp import web

from octavo_engine import contract
from octavo_operator.autoscale import Collector, KVBlocks, Pod, PodSample, PodState, Queue, Scrape, ScrapeFailure
from octavo_operator.autoscale.collect import InvalidMetrics, Reading, Tick, judge_freshness, read_metrics

from .fleet import T0, pod

GOOD = """\
# HELP octavo_kv_blocks KV cache blocks by state
# TYPE octavo_kv_blocks gauge
octavo_kv_blocks{state="active"} 120.0
octavo_kv_blocks{state="cached"} 300.0
octavo_kv_blocks{state="free"} 92.0
# TYPE octavo_kv_block_utilization gauge
octavo_kv_block_utilization 0.234375
# TYPE octavo_queue_depth gauge
octavo_queue_depth 3.0
octavo_queue_tokens 1500.0
octavo_queue_oldest_seconds 2.25
octavo_requests_running 7.0
octavo_last_step_timestamp_seconds 1.8e+09
"""
KV, QUEUE = KVBlocks(120, 300, 92), Queue(7, 3, 1500, 2250)


def without(*names: str) -> str:
    return "".join(line for line in GOOD.splitlines(True) if not any(name in line for name in names))


def instead(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


# --- Text -------------------------------------------------------------------------------------------------------
def test_a_good_answer_is_read_whole() -> None:
    assert read_metrics(GOOD) == Reading(KV, QUEUE, 1.8e9)


@pytest.mark.parametrize(
    ("text", "kv", "queue"),
    [
        (without('"cached"'), None, QUEUE),
        (instead("120.0", "NaN"), None, QUEUE),
        (instead("92.0", "+Inf"), None, QUEUE),
        (instead("120.0", "-1"), None, QUEUE),
        (GOOD.replace("octavo_kv_blocks", "octavo_kv_pages"), None, QUEUE),
        (GOOD.replace("120.0", "0").replace("300.0", "0").replace("92.0", "0"), None, QUEUE),
        (without("octavo_queue_depth"), KV, None),
        (instead("octavo_queue_depth 3.0", "octavo_queue_depth NaN"), KV, None),
        (without("octavo_requests_running"), KV, None),
    ],
)
def test_a_missing_renamed_or_impossible_series_takes_its_signal_out(
    text: str, kv: KVBlocks | None, queue: Queue | None
) -> None:
    reading = read_metrics(text)
    assert (reading.kv, reading.queue) == (kv, queue)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>login</html>",
        "octavo_kv_blocks{state=",
        '{"error": {"message": "no"}}',
        GOOD[: GOOD.index("92.0") + 1],  # cut off
        without("last_step"),
        instead("1.8e+09", "NaN"),
        without("kv_blocks{", "queue_depth"),
    ],
)
def test_what_is_not_certainly_true_is_no_sample(text: str) -> None:
    with pytest.raises(InvalidMetrics):
        read_metrics(text)


def test_every_series_that_is_read_is_one_that_is_asked_for() -> None:
    asked = "".join(line for line in GOOD.splitlines(True) if line.startswith(contract.SCRAPED_BY_AUTOSCALER))
    assert read_metrics(asked) == read_metrics(GOOD)


# --- Freshness --------------------------------------------------------------------------------------------------
def reading(last_step: float) -> Reading:
    return Reading(KV, QUEUE, last_step)


@pytest.mark.parametrize("skew", [-7200.0, 0.0, 7200.0])
def test_a_nodes_clock_may_be_hours_off(skew: float) -> None:
    tick: Tick | None = None
    for period in range(3):
        now = T0 + 10 * period
        tick, stale = judge_freshness(tick, reading(now + skew - 0.5), now + skew, now)
        assert stale is None


def test_a_loop_that_stands_still_is_stale_after_three_periods_whatever_its_clock_says() -> None:
    tick, results = None, []
    for period in range(6):
        now = T0 + 10 * period
        tick, stale = judge_freshness(tick, reading(T0), T0, now)  # a header from a cache that stands still as well
        results.append(stale is None)
    assert results == [True, True, True, True, False, False]
    tick, stale = judge_freshness(tick, reading(T0 + 60), T0 + 60, T0 + 60)
    assert stale is None, "it moves again"


def test_the_first_scrape_of_a_stuck_loop_is_refused_by_the_pods_own_clock() -> None:
    _, stale = judge_freshness(None, reading(T0 - 600), T0, 5.0)
    assert stale == "the engine's last step is 600 s old by the pod's own clock"


def test_without_a_date_the_second_scrape_proves_that_the_loop_moves() -> None:
    tick, stale = judge_freshness(None, reading(T0), None, T0)
    assert stale is not None
    tick, stale = judge_freshness(tick, reading(T0), None, T0 + 10)
    assert stale is not None
    _, stale = judge_freshness(tick, reading(T0 + 15), None, T0 + 20)
    assert stale is None


# --- Over the wire ----------------------------------------------------------------------------------------------
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(text: str | bytes, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        body = text if isinstance(text, bytes) else text.encode()
        return web.Response(body=body, status=status, headers={"Date": formatdate(1.8e9, usegmt=True), **headers})

    return handle


@asynccontextmanager
async def serving(handler: Handler, *addresses: str) -> AsyncIterator[int]:
    """Serve `handler` on the same port of every address of the loopback network; give the port."""
    application = web.Application()
    application.router.add_get(contract.PATH_METRICS, handler)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    try:
        port = 0
        for address in addresses:
            await web.TCPSite(runner, address, port).start()
            port = runner.addresses[0][1]
        yield port
    finally:
        await runner.cleanup()


def collect(handler: Handler, pods: list[Pod] | None = None, **options: float) -> dict[str, Scrape]:
    async def run() -> dict[str, Scrape]:
        async with (
            serving(handler, "127.0.0.1", "127.0.0.2") as port,
            Collector(lambda: T0, port=port, **options) as collector,  # type: ignore[arg-type]
            asyncio.timeout(10),
        ):
            return await collector.collect([pod("a")] if pods is None else pods)

    return asyncio.run(run())


def failure(result: dict[str, Scrape]) -> str:
    (scrape,) = result.values()
    assert isinstance(scrape, ScrapeFailure)
    return scrape.cause


def test_a_scrape_asks_for_the_needed_series_only() -> None:
    asked: list[list[str]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.query.getall("name[]"))
        return await answer(GOOD)(request)  # type: ignore[return-value]

    assert collect(handle) == {"uid-a": PodSample("uid-a", T0, KV, QUEUE)}
    assert asked == [list(contract.SCRAPED_BY_AUTOSCALER)]


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (answer(GOOD, 500), "HTTP status 500"),
        (answer("", 302, Location="http://127.0.0.1:1/"), "HTTP status 302"),
        (answer("<html>"), "InvalidMetrics"),
        (answer(b"\xff\xfe" + GOOD.encode()), "UnicodeDecodeError"),
        (answer(GOOD + "# " + "x" * 300_000 + "\n"), "longer than"),
        (answer(GOOD, Date=formatdate(1.8e9 + 600, usegmt=True)), "600 s old by the pod's own clock"),
    ],
)
def test_a_broken_answer_is_a_failure_with_its_cause(handler: Handler, cause: str) -> None:
    assert cause in failure(collect(handler))


def test_a_slow_answer_costs_its_time_out_and_no_other_pod() -> None:
    pods = [pod(name, ip=ip) for name, ip in (("slow", "127.0.0.2"), ("fast", "127.0.0.1"))]

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.host.startswith("127.0.0.2"):
            await asyncio.Event().wait()
        return await answer(GOOD)(request)

    result = collect(handle, pods, timeout_seconds=0.2)
    assert isinstance(result["uid-fast"], PodSample)
    assert isinstance(result["uid-slow"], ScrapeFailure)
    assert "Timeout" in result["uid-slow"].cause


def test_a_body_that_stalls_half_way_is_a_time_out() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(GOOD[:100].encode())
        await asyncio.Event().wait()
        return response

    assert "Timeout" in failure(collect(handle, timeout_seconds=0.2))


def test_a_refused_connection_is_a_failure() -> None:
    assert "Connect" in failure(collect(answer(GOOD), [pod("a", ip="127.0.0.3")]))


def test_no_more_than_the_limit_are_scraped_at_once() -> None:
    active, most = 0, 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal active, most
        active, most = active + 1, max(most, active + 1)
        for _ in range(5):
            await asyncio.sleep(0)
        active -= 1
        return await answer(GOOD)(request)

    result = collect(handle, [pod(str(number)) for number in range(20)], concurrency=3)
    assert len(result) == 20
    assert all(isinstance(scrape, PodSample) for scrape in result.values())
    assert most <= 3


def test_only_pods_that_may_carry_requests_are_asked() -> None:
    pods = [
        pod("ready"),
        pod("cordoned", cordoned=True),
        pod("starting", PodState.STARTING),
        pod("no-address", ip=None),
        pod("leaving", PodState.TERMINATING),
        pod("nowhere", PodState.UNSCHEDULABLE),
    ]
    assert set(collect(answer(GOOD), pods)) == {"uid-ready", "uid-cordoned", "uid-starting"}
