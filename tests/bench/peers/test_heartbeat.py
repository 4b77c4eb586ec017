"""What takes long is told of, whether or not anything happens in it."""

from __future__ import annotations

import threading

import pytest

from octavo_engine.bench.peers.heartbeat import Requests, heartbeat


def test_it_beats_until_the_end_and_not_after_it():
    said, enough = [], threading.Event()

    def say(text):
        said.append(text)
        if len(said) == 3:
            enough.set()

    with heartbeat(say, lambda seconds: f"{seconds >= 0}", 0.0):
        enough.wait()
    ended = len(said)
    assert set(said) == {"True"}
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert len(said) == ended


def test_it_ends_with_what_failed():
    with pytest.raises(ValueError, match="wrong"), heartbeat(lambda text: None, str, 600.0):
        raise ValueError("wrong")
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_requests_are_told_as_soon_as_any_has_ended():
    requests = Requests("llama-server at 0.32 requests a second")
    assert requests.line(20.2) == "llama-server at 0.32 requests a second: 20 s"
    requests(3, 1934)
    assert requests.line(70.0) == "llama-server at 0.32 requests a second: 3 of 1,934 requests ended, 70 s"
