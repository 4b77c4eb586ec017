"""What cannot be loaded is told as what it is."""

import pytest

from octavo_engine.worker import load
from octavo_engine.worker.backends import cpu
from octavo_engine.worker.sizing import StartError


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("OCTAVO_CPU_ISA is nonsense, which this machine cannot run", "^OCTAVO_CPU_ISA is nonsense"),
        ("Resource temporarily unavailable", "7 compute threads cannot be started .*: take fewer"),
    ],
)
def test_threads_that_cannot_be_had_are_no_fault_of_the_instruction_set(reason, sentence, monkeypatch):
    def fail(threads):
        raise RuntimeError(reason)

    monkeypatch.setattr(cpu, "start_pool", fail)
    with pytest.raises(StartError, match=sentence):
        load._start_pool(7)
