"""Rank 0 and its followers, in processes of their own over gloo: together they go on, and none goes on alone."""

import os
import queue
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.transport import make_socket_folder
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.executor import Executed
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.ranks.executor import RankedExecutor
from octavo_engine.worker.ranks.leader import RankError, Ranks
from octavo_engine.worker.ranks.messages import Begin
from tests.worker.gpu.rank_process import (
    BREAK,
    FAIL_FIRST,
    FAIL_LATER,
    FAIL_READING,
    KILL,
    UNKNOWN_MODEL,
    Summing,
    plan,
)

COMMAND = (
    "-c",
    "import sys; sys.path.insert(0, '.'); import runpy; "
    "runpy.run_module('tests.worker.gpu.rank_process', run_name='__main__')",
)
BEGIN = Begin((4,), (0,), 2, 64, 32, 1)


class Inline:
    """An executor over rank 0's own share."""

    def __init__(self, share):
        self.share, self.hang = share, None

    def submit(self, plan):
        return Later(lambda: self._execute(plan))

    def probe(self):
        return Later(self.share.probe)

    def _execute(self, plan):
        if self.hang is not None:
            self.hang.wait(30)
        return Executed(self.share.compute(plan), 0.0, 0.0)

    def set_adapter(self, slot, adapter):
        self.share.set_adapter(slot, adapter)

    def check(self):
        pass

    def close(self):
        pass


class Later:
    def __init__(self, compute):
        self.result = compute


class Together:
    """An engine of `size` ranks that has begun."""

    def __init__(self, size):
        self.gave_up = queue.SimpleQueue()
        folder = make_socket_folder()
        config = EngineConfig("model", str(folder), tensor_parallel_size=size)
        self.ranks = Ranks(config, self.gave_up.put, COMMAND)
        try:
            self.share = self._load(size, folder)
            self.ranks.begin(BEGIN)
            self.ranks.wait_begun()
        except BaseException:
            self.ranks.close()
            raise
        self.own = Inline(self.share)
        self.executor = RankedExecutor(self.own, self.ranks)
        self.pids = [process.pid for process in self.ranks._processes.values()]

    def _load(self, size, folder):
        """Rank 0 waits for the others here: if one ends, the process would; here its reason is raised."""
        made = queue.SimpleQueue()
        threading.Thread(target=lambda: made.put(Summing(0, size, folder)), daemon=True).start()
        while made.empty():
            if not self.gave_up.empty():
                raise self.gave_up.get()
            time.sleep(0.01)
        return made.get()

    def sums(self, number):
        return self.executor.submit(plan(number)).result().result

    def close(self):
        self.ranks.close()
        self.share.link.close()


@contextmanager
def together(size):
    engine = Together(size)
    try:
        yield engine
    finally:
        engine.close()


def test_ranks_compute_together_fail_together_and_leave(tmp_path):
    (tmp_path / "digest").write_text("four")
    with together(3) as engine:
        assert engine.sums(0) == (21, 0)  # (1 + 2 + 4), summed once more over three ranks
        adapter = engine.ranks.open_adapter(tmp_path, engine.share.open_adapter)
        assert adapter.digest == "four"
        before = engine.executor.submit(plan(1))
        assert before.result().result == (21, 0)
        engine.executor.set_adapter(2, adapter)
        assert engine.sums(2) == (21, 36)
        engine.executor.set_adapter(2, None)
        assert engine.sums(3) == (21, 0)
        # On all ranks alike, or where it is of no account to the others: a failed step, and no more.
        for number, fault, rank in ((4, FAIL_FIRST, -1), (5, FAIL_LATER, -1), (6, FAIL_READING, 0)):
            with pytest.raises(StepError):
                engine.executor.submit(plan(number, fault, rank)).result()
            engine.executor.probe().result()
        assert engine.sums(8) == (21, 0)
        engine.executor.check()
        processes = list(engine.ranks._processes.values())
    assert [process.returncode for process in processes] == [0, 0]
    assert engine.gave_up.empty()


def test_an_adapter_is_refused_that_one_rank_cannot_read_and_all_go_on(tmp_path):
    (tmp_path / "digest").write_text("four")
    with together(2) as engine:
        (tmp_path / "rank-1").write_text("No matrix is here.")
        with pytest.raises(UnsupportedModelError, match=r"Rank 1 cannot read the adapter in .*: No matrix is here"):
            engine.ranks.open_adapter(tmp_path, engine.share.open_adapter)
        (tmp_path / "rank-1").rename(tmp_path / "rank-0")
        with pytest.raises(UnsupportedModelError, match="No matrix is here"):
            engine.ranks.open_adapter(tmp_path, engine.share.open_adapter)
        (tmp_path / "rank-0").unlink()
        engine.executor.set_adapter(0, engine.ranks.open_adapter(tmp_path, engine.share.open_adapter))
        assert engine.sums(0) == (6, 16)


@pytest.mark.parametrize(("fault", "rank"), [(FAIL_FIRST, 0), (FAIL_LATER, 1)])
def test_a_step_that_fails_on_one_rank_alone_ends_all_with_a_reason(fault, rank):
    with together(2) as engine:
        engine.sums(0)
        began = time.monotonic()
        pending = engine.executor.submit(plan(1, fault, rank))
        if rank == 0:
            with pytest.raises(RankError, match=r"Rank 0 of 2 failed in step 1 otherwise .*ValueError: (first|later)"):
                pending.result()
        else:
            # Rank 0 waits in a sum that nobody completes: the watching thread says why.
            threading.Thread(target=settle, args=(pending,), daemon=True).start()
            error = engine.gave_up.get(timeout=10)
            assert isinstance(error, RankError)
            assert "Rank 1 of 2 failed in step 1 otherwise" in str(error)
        assert time.monotonic() - began < 10


def settle(pending):
    try:
        pending.result()
    except RuntimeError:
        return


def test_a_rank_that_is_killed_while_nothing_is_computed_is_told_with_the_next_turn():
    with together(3) as engine:
        engine.sums(0)
        os.kill(engine.pids[1], 9)
        error = until_raised(engine.executor.check, 5)
        assert str(error) == "Rank 2 of 3 ended (killed by signal 9): the engine stops."
        assert engine.gave_up.empty()


def test_a_rank_that_is_killed_within_a_step_is_why_the_step_fails():
    with together(3) as engine:
        with pytest.raises(RankError) as raised:
            engine.executor.submit(plan(0, KILL, 1)).result()
        assert str(raised.value) == "Rank 1 of 3 ended (killed by signal 9): the engine stops."


def test_where_rank_0_hangs_the_process_is_ended_in_its_place():
    with together(2) as engine:
        engine.own.hang = threading.Event()
        pending = engine.executor.submit(plan(0))
        waiting = threading.Thread(target=settle, args=(pending,), daemon=True)
        waiting.start()
        began = time.monotonic()
        os.kill(engine.pids[0], 9)
        error = engine.gave_up.get(timeout=10)
        assert str(error) == "Rank 1 of 2 ended (killed by signal 9): the engine stops."
        assert time.monotonic() - began < 10
        engine.own.hang.set()
        waiting.join()


def test_a_rank_that_breaks_says_its_last_words():
    with together(2) as engine:
        with pytest.raises(RankError) as raised:
            engine.executor.submit(plan(0, BREAK, 1)).result()
        expected = "Rank 1 of 2 ended (ContractError: Slot 0 is somebody else's): the engine stops."
        assert str(raised.value) == expected


def test_a_model_that_a_rank_cannot_load_ends_the_start_with_its_sentence():
    config = EngineConfig(UNKNOWN_MODEL, str(make_socket_folder()), tensor_parallel_size=2)
    ranks = Ranks(config, lambda error: None, COMMAND)
    try:
        with pytest.raises(RankError, match=r"Rank 1 of 2 ended \(Nobody serves this model; use another\): the"):
            ranks.wait_begun()
    finally:
        ranks.close()


LEADER = """
import sys
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.transport import make_socket_folder
from octavo_engine.worker.ranks.leader import Ranks
follower = "from octavo_engine.worker.ranks.process import read_config as read; read(); import signal; signal.pause()"
ranks = Ranks(EngineConfig("m", str(make_socket_folder()), tensor_parallel_size=3), print, ("-c", follower))
print(*(process.pid for process in ranks._processes.values()), flush=True)
sys.stdin.read()
"""


def test_followers_end_with_rank_0_however_it_ends():
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    files = [os.pidfd_open(int(pid)) for pid in leader.stdout.readline().split()]
    leader.kill()
    leader.communicate()
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    deadline, gone = time.monotonic() + 10, set()
    while len(gone) < 2 and time.monotonic() < deadline:
        gone |= {file for file, _ in poller.poll(1000)}
    for file in files:
        os.close(file)
    assert len(gone) == 2


def until_raised(call, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            call()
        except RankError as error:
            return error
        time.sleep(0.01)
    raise AssertionError("nothing was raised")
