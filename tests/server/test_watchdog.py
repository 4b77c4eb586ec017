"""A server whose event loop hangs ends by itself and says where; one that is busy, or stopped for a while, goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

from octavo_engine.server.watchdog import EXIT_STUCK, Watchdog

HANGING = """
import asyncio, threading
from octavo_engine.server.watchdog import Watchdog

def hang_here():
    threading.Event().wait()

async def main():
    with Watchdog(asyncio.get_running_loop(), 0.6):
        print("begun", flush=True)
        await asyncio.sleep(%s)
        hang_here()

asyncio.run(main())
"""


def test_a_loop_that_hangs_ends_the_process_and_the_place_is_told() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING % 0], capture_output=True, text=True, timeout=30)
    assert ended.returncode == EXIT_STUCK
    assert "has done nothing for 1 s" in ended.stderr
    assert "in hang_here" in ended.stderr


def test_a_process_that_was_stopped_as_a_whole_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING % 60], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # longer than it may hang: the time itself is the case
        os.kill(process.pid, signal.SIGCONT)
        try:
            assert process.wait(0.4) is None
        except subprocess.TimeoutExpired:
            process.kill()


def test_a_loop_that_is_busy_but_turns_is_left_alone() -> None:
    ended = threading.Event()

    def take_time() -> None:
        time.sleep(0.1)

    async def work() -> None:
        with Watchdog(asyncio.get_running_loop(), 0.6, ended.set):
            for _ in range(12):
                take_time()
                await asyncio.sleep(0)

    asyncio.run(work())
    assert not ended.is_set()


def test_nothing_is_watched_after_the_end() -> None:
    ended = threading.Event()

    async def work() -> None:
        with Watchdog(asyncio.get_running_loop(), 0.2, ended.set):
            await asyncio.sleep(0)

    asyncio.run(work())
    assert not ended.wait(0.5)
