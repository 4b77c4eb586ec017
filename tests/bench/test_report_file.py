"""The file of `--json`: whole at every moment, and known to be writable before anything is measured."""

import os
import stat

import msgspec
import pytest

from octavo_engine.bench.machine import describe_machine
from octavo_engine.bench.report import Report, check_writable, write_json


def report(**figures):
    return Report("t", describe_machine(), {}, [], figures)


@pytest.fixture
def here(tmp_path):
    return tmp_path / "report.json"


def test_a_check_leaves_everything_as_it_is(here):
    check_writable(here)
    assert list(here.parent.iterdir()) == []
    here.write_text("earlier")
    check_writable(here)
    assert here.read_text() == "earlier"
    assert list(here.parent.iterdir()) == [here]


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        check_writable(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_writable(tmp_path / "no" / "report.json")


def test_a_report_takes_the_place_of_an_earlier_one_whole(here):
    write_json(here, report(a=1))
    held = here.open("rb")
    write_json(here, report(a=2))
    with held:
        assert msgspec.json.decode(held.read())["figures"] == {"a": 1}
    assert msgspec.json.decode(here.read_bytes())["figures"] == {"a": 2}
    assert list(here.parent.iterdir()) == [here]


def test_a_report_that_cannot_be_encoded_leaves_the_earlier_one(here):
    write_json(here, report(a=1))
    with pytest.raises(TypeError):
        write_json(here, report(a=object()))
    assert msgspec.json.decode(here.read_bytes())["figures"] == {"a": 1}


def test_a_link_stays_one_and_a_file_has_the_modes_of_any_other(here, tmp_path_factory):
    target = tmp_path_factory.mktemp("target") / "real.json"
    here.symlink_to(target)
    write_json(here, report(a=1))
    assert here.is_symlink()
    assert msgspec.json.decode(target.read_bytes())["figures"] == {"a": 1}
    plain = target.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_pipe_is_written_into(here):
    os.mkfifo(here)
    reader = os.open(here, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(here)
    write_json(here, report(a=1))
    assert msgspec.json.decode(os.read(reader, 1 << 16))["figures"] == {"a": 1}
    os.close(reader)
