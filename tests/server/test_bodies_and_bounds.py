"""What a request may hold and ask for at the most, over a scripted endpoint: sequences, and bodies that never arrive."""

from __future__ import annotations

from octavo_engine import contract
from tests.server.double import Script, double
from tests.server.test_refusals import check_error

COMPLETIONS = contract.PATH_COMPLETIONS


def test_more_sequences_than_may_ever_wait_are_a_client_s_error() -> None:
    with double(Script([97]), max_queue_requests=16) as server:
        many = check_error(server.post(COMPLETIONS, {"prompt": ["z"] * 18}))
        assert many["param"] == "prompt"
        assert "18 sequences" in many["message"]
        assert "16 may wait" in many["message"]
        assert check_error(server.post(COMPLETIONS, {"prompt": "z", "n": 18}))["param"] == "n"
        assert server.post(COMPLETIONS, {"prompt": ["z"] * 16}).status_code == 200
