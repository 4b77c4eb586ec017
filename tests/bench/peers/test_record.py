"""A comparison's report grows, and is kept whatever ends the comparison."""

from __future__ import annotations

import json

import pytest

from octavo_engine.bench.machine import describe_machine
from octavo_engine.bench.peers.measure import Measured
from octavo_engine.bench.peers.notes import Notes
from octavo_engine.bench.peers.point import DECODE
from octavo_engine.bench.peers.record import Record
from octavo_engine.bench.peers.schedule import Group
from octavo_engine.bench.peers.serving import Serving

TITLES = {"octavo:file": "Octavo, file", "openvino:file": "OpenVINO GenAI, file"}


def measured(**figures):
    names = {"ours": "octavo:file", "theirs": "openvino:file"}
    return Measured(
        figures={("decode", names[name]): rates for name, rates in figures.items()},
        timings={},
        loads=[1.0],
        titles=TITLES,
        best_batch={},
        batch_rates={},
        groups=[Group(DECODE.title, tuple((name, DECODE) for name in TITLES))],
    )


@pytest.fixture
def file(tmp_path):
    return tmp_path / "report.json"


@pytest.fixture
def said():
    return []


@pytest.fixture
def record(file, said):
    return Record(describe_machine(), {"model": "m.gguf"}, Notes(said.append), file)


def test_each_piece_is_written_at_once_and_marked_incomplete(record, file):
    with record.until_complete():
        record.keep_points(measured(ours=[200.0]))
        first = json.loads(file.read_text())
        record.keep_points(measured(ours=[200.0], theirs=[50.0]))
        second = json.loads(file.read_text())
        record.keep_servers(Serving({"octavo": "octavo serve"}, {"octavo": 3.0}, []))
        third = json.loads(file.read_text())
    assert [len(found["figures"]["in_process"]["figures"]) for found in (first, second)] == [1, 2]
    assert second["figures"]["in_process"]["ratios"][0]["ratio"]["median"] == 4.0
    assert third["figures"]["served"]["saturations"] == {"octavo": 3.0}
    assert [found["complete"] for found in (first, second, third)] == [False, False, False]
    assert record.report().complete


@pytest.mark.parametrize(
    ("error", "what"),
    [(KeyboardInterrupt(), "Interrupted"), (SystemExit(143), "Interrupted"), (OSError("no disk"), "Ended early")],
)
def test_what_cuts_it_short_leaves_the_tables_and_the_file(record, file, capsys, error, what):
    record.keep_points(measured(ours=[200.0], theirs=[50.0]))
    with pytest.raises(type(error)), record.until_complete():
        raise error
    shown = capsys.readouterr()
    assert "OpenVINO GenAI, file" in shown.out
    assert "Incomplete: the run was cut short." in shown.out
    assert shown.err == (
        f'octavo bench: {what}: what was measured until then is above and in {file} with "complete": false.\n'
    )
    assert json.loads(file.read_text())["complete"] is False


def test_before_the_first_figure_an_earlier_report_stays(record, file, capsys):
    file.write_text("earlier")
    record.keep_points(measured())
    with pytest.raises(KeyboardInterrupt), record.until_complete():
        raise KeyboardInterrupt
    assert file.read_text() == "earlier"
    assert capsys.readouterr() == ("", "octavo bench: Interrupted: nothing was measured yet.\n")


def test_a_file_that_cannot_be_written_now_does_not_end_the_measuring(tmp_path, said):
    folder = tmp_path / "gone"
    record = Record(describe_machine(), {}, Notes(said.append), folder / "report.json")
    record.keep_points(measured(ours=[200.0]))
    assert said == [f"{folder}/report.json cannot be written: No such file or directory"]
    folder.mkdir()
    record.keep_points(measured(ours=[200.0]))
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_who_was_left_out_and_why_is_in_the_file_and_below_the_tables(said):
    notes = Notes(said.append)
    record = Record(describe_machine(), {}, notes, None)
    notes.leave_out("vllm", "vLLM-CPU", MemoryError())
    notes.leave_out("llamacpp", "llama-server", "it ended with 1.", "of the servers")
    assert record.report().figures["left_out"] == notes.left_out
    assert record.report().tables[-1].rows == [
        ("vLLM-CPU", "everything", "MemoryError"),
        ("llama-server", "of the servers", "it ended with 1."),
    ]
    assert said == ["vLLM-CPU is left out: MemoryError", "llama-server is left out of the servers: it ended with 1."]
