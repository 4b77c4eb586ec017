"""What the engine tells of a request's end says whose doing it was."""

import pytest

from octavo_engine.core.config import Event
from octavo_engine.sampling.sampler import NOT_FINITE, NOTHING_ALLOWED
from octavo_engine.worker.grammar import CANNOT_FOLLOW
from octavo_engine.worker.loop import STEP_FAILED
from octavo_engine.worker.requests import RequestTable


@pytest.mark.parametrize(
    ("detail", "unsatisfiable"),
    [(NOTHING_ALLOWED, True), (f"{CANNOT_FOLLOW}: too complex.", True), (NOT_FINITE, False), (STEP_FAILED, False)],
)
def test_an_error_says_whether_the_request_made_it(detail, unsatisfiable):
    table = RequestTable()
    (sequence,) = table.add(7, 1)
    (output,) = table.outputs([Event(sequence, finish="error", detail=detail)])
    assert (output.request, output.finish, output.detail) == (7, "error", detail)
    assert output.unsatisfiable == unsatisfiable


def test_what_is_no_error_is_satisfied():
    table = RequestTable()
    (sequence,) = table.add(7, 1)
    (output,) = table.outputs([Event(sequence, (1, 2), "stop", logprobs=b"x")])
    assert (output.tokens, output.logprobs, output.unsatisfiable) == ((1, 2), b"x", False)
