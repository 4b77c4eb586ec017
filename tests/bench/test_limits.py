"""A machine's limits are measured by what is there."""

from octavo_engine.bench import limits


def test_a_torch_that_does_not_work_is_left_out_and_said_so(monkeypatch, capsys):
    monkeypatch.setattr(limits, "find_spec", lambda name: name)
    monkeypatch.setattr(limits, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "_TORCH", "raise ImportError('no such library')")
    found = limits.measure_limits("float32", 1)
    assert found.sources == {}
    assert found.bytes_per_second > 0
    assert "torch is left out of the limits: ImportError: no such library" in capsys.readouterr().err


def test_a_torch_that_works_says_its_peak(monkeypatch):
    monkeypatch.setattr(limits, "find_spec", lambda name: name)
    monkeypatch.setattr(limits, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "_TORCH", "print(5e9)")
    assert limits.measure_limits("int8", 1).multiply_adds_per_second == 5e9
