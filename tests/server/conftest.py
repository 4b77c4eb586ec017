"""One real server for the session; tests that end or stop a server start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.launch import Server, serving

URI = "scripted://?step=2ms&blocks=512&eos=0"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over a scripted model: one token a byte, 8192 tokens of context, never EOS by itself."""
    with serving(tmp_path_factory.mktemp("server"), URI, "--drain-propagation", "0") as running:
        yield running


@pytest.fixture
def quiet(server: Server) -> Iterator[Server]:
    """The session's server; whatever the test did, it must be idle, whole and answering afterwards."""
    before = server.engine().pid
    yield server
    server.wait_idle()
    assert server.engine().pid == before
    answer = server.post("/v1/completions", {"prompt": "ok", "max_tokens": 4})
    assert answer.status_code == 200, answer.text
