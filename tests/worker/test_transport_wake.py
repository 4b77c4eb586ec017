"""The engine's end of the pipes: its wait can be ended from any thread."""

import threading
import time

import pytest

from octavo_engine.ipc.transport import EngineEndpoint, make_socket_folder


@pytest.fixture
def endpoint():
    folder = make_socket_folder()
    with EngineEndpoint(folder) as endpoint:
        yield endpoint
    folder.rmdir()


def test_a_wait_ends_when_another_thread_says_so(endpoint):
    began = time.monotonic()
    thread = threading.Timer(0.05, endpoint.wake)
    thread.start()
    assert endpoint.poll(20) == []
    assert time.monotonic() - began < 10
    thread.join()


def test_a_wake_before_the_wait_is_not_lost_and_counts_once(endpoint):
    endpoint.wake()
    endpoint.wake()
    assert endpoint.poll(0) == []
    began = time.monotonic()
    assert endpoint.poll(20) == []
    assert time.monotonic() - began < 10
    began = time.monotonic()
    endpoint.poll(0.05)
    assert time.monotonic() - began >= 0.04


def test_a_wake_after_the_end_is_no_error(endpoint):
    endpoint.close()
    endpoint.wake()
    endpoint.close()
