"""Every acceptance line of the fast CPU engine can be taken on the real model: its short form, without its promises."""

import pytest

from octavo_engine.model.pull import pull
from tests.acceptance.issue_4 import run_line
from tests.acceptance.lines_4 import LINES, MODEL, Settings

WITHOUT_PEERS = (1, 2, 3, 4, 5, 6)
"""Lines 7 and 8 are other servers, which nobody installs in a test, and the kernels' own tests."""


@pytest.fixture(scope="module", autouse=True)
def _model():
    pull(MODEL, lambda stage, fraction: None)


@pytest.mark.parametrize("line", WITHOUT_PEERS)
def test_the_short_form_takes_every_figure(line):
    figures = run_line(line, Settings(short=True, texts=[], install=False))
    assert figures, LINES[line].__doc__
    assert not [figure for figure in figures if not figure.measured]
    # What depends on no clock holds in the short form, too.
    exact = {figure.what: figure.figure for figure in figures}
    assert exact.get("failed requests", "0") == "0"
    assert exact.get("processes with torch", "none") == "none"
