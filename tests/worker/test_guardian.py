"""The guardian: ticks while a step is computed, silence while nothing is, and the end of a step that hangs."""

import threading

import pytest

from octavo_engine.core.step import Row, StepPlan
from octavo_engine.ipc.messages import Step
from octavo_engine.ipc.transport import PeerGone
from octavo_engine.worker import guardian
from octavo_engine.worker.guardian import EngineStuckError, Guardian, Outbox
from tests.worker.harness import snapshot

PLAN = StepPlan(7, (), (), (), (), (Row(0, 41, 0, 1, True), Row(1, 42, 0, 1, True)))


class Sent:
    """An endpoint that keeps what is sent, and says when there is more."""

    def __init__(self, error=None):
        self.messages, self.error, self.more = [], error, threading.Semaphore(0)

    def poll(self, timeout_seconds):
        return []

    def send(self, message):
        if self.error and self.messages:
            raise self.error
        self.messages.append(message)
        self.more.release()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(guardian, "TICK_SECONDS", 0.05)


def watch(endpoint, timeout=60.0):
    given_up, gave_up = [], threading.Event()
    outbox = Outbox(endpoint)
    outbox.step((), snapshot(running=2, step_seconds=0.5))
    return Guardian(outbox, timeout, lambda error: (given_up.append(error), gave_up.set())), given_up, gave_up


def test_it_ticks_while_a_step_is_computed_and_not_otherwise():
    endpoint = Sent()
    guard, _, _ = watch(endpoint)
    with guard:
        guard.watch(PLAN)
        for _ in range(3):
            assert endpoint.more.acquire(timeout=5)
        guard.rest()
        before = len(endpoint.messages)
        threading.Event().wait(0.3)  # six ticks' time
        assert len(endpoint.messages) <= before + 1
    first, tick = endpoint.messages[0], endpoint.messages[-1]
    assert isinstance(tick, Step)
    assert (tick.outputs, tick.snapshot.running, tick.snapshot.step_seconds) == ((), 2, 0.0)
    assert tick.snapshot.time > first.snapshot.time


def test_a_step_that_does_not_end_is_given_up_by_name():
    guard, given_up, gave_up = watch(Sent(), timeout=0.2)
    with guard:
        guard.watch(PLAN)
        assert gave_up.wait(5)
    assert len(given_up) == 1
    assert isinstance(given_up[0], EngineStuckError)
    assert str(given_up[0]) == "Step 7 has not ended after 0 s (sequences 41, 42)."


def test_an_api_process_that_has_gone_is_noticed_during_a_step():
    guard, given_up, gave_up = watch(Sent(PeerGone("gone")))
    with guard:
        guard.watch(PLAN)
        assert gave_up.wait(5)
    assert isinstance(given_up[0], PeerGone)
