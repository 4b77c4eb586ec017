"""The tokenising processes and the bounds before them: lanes, deaths, time-outs, bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo_engine.server.errors import ApiError
from octavo_engine.server.exchange import SMALL_BODY, BodyBudget
from octavo_engine.server.jobs import Answer, Job, Limits, Prepared
from octavo_engine.server.signs_of_life import LOOKS, SilentError, cpu_seconds, watched
from octavo_engine.server.tokenize_pool import Lane, TokenizePool, TokenizerUnavailable
from tests.server.launch import serving, wait_until

LIMITS = Limits(("m",), 10**6, 259, 10**6)
SOURCE = "scripted://"


def job(prompt: str = "hello", **fields: Any) -> Job:
    return Job("completions", json.dumps({"prompt": prompt, **fields}).encode(), LIMITS)


def with_lane(use: Callable[[Lane], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        lane = Lane(SOURCE, 0, **options)
        await lane.start()
        task = asyncio.create_task(lane.serve())
        try:
            await use(lane)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await lane.stop()

    asyncio.run(run())


def test_a_job_comes_back_as_token_ids() -> None:
    async def use(lane: Lane) -> None:
        result = await lane.run(job())
        assert isinstance(result, Prepared)
        assert result.prompts == (b"".join(byte.to_bytes(4, "little") for byte in b"hello"),)
        answer = await lane.run(Job("detokenize", b'{"tokens": [104, 105]}', LIMITS))
        assert answer == Answer(b'{"prompt":"hi"}')

    with_lane(use)


def test_a_refusal_comes_back_as_itself() -> None:
    async def use(lane: Lane) -> None:
        with pytest.raises(ApiError) as refused:
            await lane.run(job(temperature=9))
        assert (refused.value.status, refused.value.param) == (400, "temperature")

    with_lane(use)


async def until(condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(wait_until, condition, 20, "another process")


def test_a_process_that_dies_idle_is_replaced_before_the_next_job_comes() -> None:
    async def use(lane: Lane) -> None:
        first = lane.pid
        assert first is not None
        psutil.Process(first).kill()
        await until(lambda: lane.pid not in (None, first))
        assert isinstance(await lane.run(job()), Prepared)

    with_lane(use)


def test_a_process_that_has_just_died_costs_no_job() -> None:
    async def use(lane: Lane) -> None:
        assert lane.pid is not None
        psutil.Process(lane.pid).kill()
        assert isinstance(await lane.run(job()), Prepared)

    with_lane(use)


def test_a_job_under_which_two_processes_die_is_given_up_alone() -> None:
    async def use(lane: Lane) -> None:
        first = lane.pid
        assert first is not None
        psutil.Process(first).suspend()
        deadly = asyncio.create_task(lane.run(job()))
        innocent = asyncio.create_task(lane.run(job()))
        await asyncio.sleep(0)
        psutil.Process(first).kill()
        await until(lambda: lane.pid not in (None, first))
        assert lane.pid is not None
        psutil.Process(lane.pid).kill()
        with pytest.raises(ApiError) as lost:
            await deadly
        assert lost.value.status == 503
        assert isinstance(await innocent, Prepared)

    with_lane(use)


def test_a_process_that_is_frozen_under_a_job_is_replaced_and_costs_no_job() -> None:
    async def use(lane: Lane) -> None:
        frozen = lane.pid
        assert frozen is not None
        psutil.Process(frozen).suspend()
        jobs = [asyncio.create_task(lane.run(job(prompt))) for prompt in ("under it", "behind it")]
        await until(lambda: not lane.answers)
        results = await asyncio.gather(*jobs)
        assert all(isinstance(result, Prepared) for result in results)
        assert lane.answers
        assert lane.pid not in (None, frozen)

    with_lane(use, silent_seconds=3.0)


def test_a_process_that_is_frozen_while_idle_is_replaced_before_the_next_job_comes() -> None:
    async def use(lane: Lane) -> None:
        frozen = lane.pid
        assert frozen is not None
        psutil.Process(frozen).suspend()
        await until(lambda: not lane.answers)
        await until(lambda: lane.answers)
        assert lane.pid not in (None, frozen)
        assert isinstance(await lane.run(job()), Prepared)

    with_lane(use, silent_seconds=3.0)


def test_a_process_that_was_stopped_for_less_goes_on() -> None:
    async def use(lane: Lane) -> None:
        stopped = lane.pid
        assert stopped is not None
        psutil.Process(stopped).suspend()
        held = asyncio.create_task(lane.run(job()))
        await until(lambda: not lane.answers)
        psutil.Process(stopped).resume()
        assert isinstance(await held, Prepared)
        assert lane.answers
        assert lane.pid == stopped

    with_lane(use, silent_seconds=8.0)


def test_waiting_for_a_grammar_s_compilation_is_no_silence() -> None:
    costly = {"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(10, 30)]}

    async def use(lane: Lane) -> None:
        first = lane.pid
        with pytest.raises(ApiError) as refused:
            await lane.run(job(structured_outputs={"json": costly}))
        assert refused.value.status == 400
        assert lane.pid == first

    with_lane(use, silent_seconds=1.5)


def test_readiness_tells_of_a_frozen_process_until_another_answers(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted://", "--health-timeout", "3") as server:
        (frozen,) = server.tokenisers()
        frozen.suspend()
        refused = wait_until(lambda: server.status("/ready") == 503 and server.get("/ready"), 30, "not ready")
        assert refused.json()["error"]["code"] == "tokenizer_silent"
        assert server.status("/health") == 200, "it mends itself"
        answer = server.post("/v1/completions", {"prompt": "p", "max_tokens": 2})
        assert answer.status_code == 200, "what waits is answered"
        assert server.status("/ready") == 200
        assert frozen.pid not in [tokeniser.pid for tokeniser in server.tokenisers()]
        assert "has died (it has done nothing for 3 s); it is started again" in server.text_log()


def test_what_uses_its_processor_is_not_silent_however_long_it_takes() -> None:
    async def run() -> None:
        looked = asyncio.Event()
        used = itertools.count()
        noted: list[bool] = []

        def note(silent: bool) -> None:
            noted.append(silent)
            if len(noted) == 3 * LOOKS:
                looked.set()

        assert await watched(looked.wait(), lambda: float(next(used)), 0.1, note)
        assert not any(noted)

    asyncio.run(run())


def test_what_does_nothing_is_silent_after_a_while_and_given_up_later() -> None:
    async def run() -> None:
        noted: list[bool] = []
        given_up = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

        with pytest.raises(SilentError, match=r"done nothing for 0\.1 s"):
            await watched(work(), lambda: 1.0, 0.1, noted.append)
        assert noted == [False] * (LOOKS // 2 - 1) + [True] * (LOOKS // 2 + 1)
        assert given_up.is_set()

    asyncio.run(run())


def test_the_processor_time_of_another_process_goes_on_while_it_works_and_stands_while_it_is_stopped() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        begun = cpu_seconds(busy.pid)
        wait_until(lambda: cpu_seconds(busy.pid) > begun, 20, "its clock goes on")
        psutil.Process(busy.pid).suspend()
        wait_until(lambda: psutil.Process(busy.pid).status() == psutil.STATUS_STOPPED, 20, "stopped")
        assert cpu_seconds(busy.pid) == cpu_seconds(busy.pid) > begun
    finally:
        busy.kill()
        busy.wait()
    assert cpu_seconds(busy.pid) == 0


def test_a_job_that_takes_too_long_is_broken_off() -> None:
    async def use(lane: Lane) -> None:
        assert lane.pid is not None
        psutil.Process(lane.pid).suspend()
        stuck = asyncio.create_task(lane.run(job()))
        waiting = asyncio.create_task(lane.run(job()))
        with pytest.raises(ApiError) as late:
            await stuck
        assert late.value.status == 503
        assert isinstance(await waiting, Prepared), "the next one has a new process"

    with_lane(use, job_seconds=2.0)


def test_what_waits_is_bounded_in_bytes_and_forgotten_when_the_client_leaves() -> None:
    async def use(lane: Lane) -> None:
        assert lane.pid is not None
        process = psutil.Process(lane.pid)
        process.suspend()
        running = [asyncio.create_task(lane.run(job())) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as full:
            await lane.run(job())
        assert full.value.status == 429
        for task in running[3:]:
            task.cancel()
        await asyncio.gather(*running[3:], return_exceptions=True)
        after = asyncio.create_task(lane.run(job()))
        process.resume()
        results = await asyncio.gather(*running[:3], after)
        assert all(isinstance(result, Prepared) for result in results)

    with_lane(use, max_waiting_bytes=len(job().body) * 10)


def test_large_bodies_have_a_lane_of_their_own() -> None:
    async def run() -> None:
        pool = TokenizePool(SOURCE)
        await pool.start()
        try:
            assert pool.large.pid is None, "started by the first large body"
            assert isinstance(await pool.run(job("x" * SMALL_BODY)), Prepared)
            large = psutil.Process(pool.large.pid)
            large.suspend()
            held = asyncio.create_task(pool.run(job("x" * SMALL_BODY)))
            assert isinstance(await pool.run(job()), Prepared)
            assert not held.done()
            large.resume()
            assert isinstance(await held, Prepared)
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_model_without_a_tokenizer_is_one_sentence() -> None:
    async def run() -> None:
        with pytest.raises(TokenizerUnavailable, match="does not exist"):
            await Lane("/nowhere/model.gguf", 0).start()

    asyncio.run(run())


def test_the_body_budget_is_served_in_order_and_never_leaks() -> None:
    async def run() -> None:
        budget = BodyBudget(10)
        first, second, third, fourth = (budget.holding() for _ in range(4))
        await budget.acquire(first, 8)
        await budget.acquire(second, 5)
        assert budget.free == -3, "the first that finds no room goes beyond the bound"
        waiting = [asyncio.create_task(budget.acquire(holding, size)) for holding, size in ((third, 9), (fourth, 1))]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting), "nobody else does, and no small one overtakes"
        await budget.acquire(second, 4)
        second.release()
        await asyncio.sleep(0)
        assert waiting[0].done(), "its turn is the next one's"
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        third.release()
        first.release()
        granted = asyncio.create_task(budget.acquire(first, 10))
        await granted
        beyond = asyncio.create_task(budget.acquire(second, 10))
        cancelled = asyncio.create_task(budget.acquire(third, 10))
        await asyncio.sleep(0)
        second.release()  # grants the third, which is cancelled before it runs again
        cancelled.cancel()
        await asyncio.gather(beyond, cancelled, return_exceptions=True)
        for holding in (first, second, third, fourth):
            holding.release()
        assert budget.free == 10

    asyncio.run(run())


def test_bodies_that_fill_the_budget_side_by_side_all_get_through() -> None:
    async def grow(budget: BodyBudget) -> None:
        holding = budget.holding()
        for _ in range(10):
            await budget.acquire(holding, 1)
            await asyncio.sleep(0)
        holding.release()

    async def run() -> None:
        budget = BodyBudget(20)
        async with asyncio.timeout(10):
            await asyncio.gather(*(grow(budget) for _ in range(7)))
        assert budget.free == 20

    asyncio.run(run())
