"""Perplexity beside a speed costs no other figure; ratios hold where no float holds the perplexities."""

import json
import math

import msgspec
import pytest

from octavo_engine.bench.harness import Harness
from octavo_engine.bench.perplexity import BesideSpeed, QualityError, Text, compare, perplexity, read_text
from octavo_engine.ipc.config import EngineConfig


def make(uri):
    harness = Harness(EngineConfig(model=uri, max_num_seqs=4, socket_folder=""), lambda stage, fraction: None)
    harness.settle()
    return harness


def telling(name):
    return lambda done, whole: None


def test_a_perplexity_beside_a_speed_names_its_text():
    found = BesideSpeed(make("scripted://?blocks=256&max_len=2048"), 2).measure(telling)
    assert found.perplexity > 1
    assert found.row()[0].endswith("pydoc_data.topics")
    assert not found.why_not


@pytest.mark.parametrize(
    ("uri", "windows", "why"),
    [
        ("scripted://?blocks=256&max_len=1024", 2, "needs a context of one more"),
        ("scripted://?blocks=256&max_len=2048", 100_000, "a smaller --perplexity-windows"),
        ("scripted://?blocks=256&max_len=2048&nan=101", 2, "ended with 'error'"),
    ],
)
def test_what_cannot_be_measured_says_why(uri, windows, why):
    found = BesideSpeed(make(uri), windows).measure(telling)
    assert found.perplexity is None
    assert why in found.why_not
    assert found.row()[1] == "not measured"


def test_a_model_without_a_tokeniser_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").touch()
    harness = make("scripted://?blocks=256&max_len=2048")
    harness.config = msgspec.structs.replace(harness.config, model=str(tmp_path))
    assert "tokenizer.json" in BesideSpeed(harness, 2).measure(telling).why_not
    with pytest.raises(QualityError, match=r"tokenizer\.json"):
        read_text("pydoc_data.topics", str(tmp_path), 1)


def test_a_ratio_of_perplexities_beyond_a_float():
    text = Text("t", [(1, 2, 3), (4, 5, 6)])
    worse, bad = [-2000.0, -2000.0], [-1998.0, -1998.0]
    assert perplexity(worse, text) == math.inf
    found = compare("c", text, worse, bad)
    assert found.excess == pytest.approx(math.e - 1)
    assert compare("c", text, worse, [-2.0, -2.0]).worst_window_excess == math.inf
