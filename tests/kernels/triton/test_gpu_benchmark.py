"""`benchmarks/gpu.py` is ready for the moment a GPU is at hand: every line of it runs in Triton's interpreter."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu
from benchmarks.on_gpu.checks_sampling import DRAWS, drawn, uniform

from octavo_engine.sampling.sampler import RowSampling
from octavo_engine.sampling.sampler import sample as native_sample
from octavo_engine.sampling.settings import prepare
from octavo_kernels.triton.configurations import read_table

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
ABSENT = (
    "fastapi", "gguf", "httpx", "kopf", "llguidance", "msgspec", "octavo_kernels.cpu", "pydantic", "safetensors",
    "scipy", "tokenizers", "transformers", "uvicorn", "zmq",
)  # fmt: skip
"""What a bare machine with numpy, torch and triton does not have. None in sys.modules is how Python says so."""


def run(folder: Path, *arguments: str, absent: tuple[str, ...] = ABSENT) -> subprocess.CompletedProcess:
    """Run the script where these modules are not installed, from any folder."""
    # Read by every Python process that is started, its children too.
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_every_section_runs_to_its_end_with_numpy_torch_and_triton_alone(tmp_path):
    done = run(tmp_path, "--device", "cpu", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["meaningless"] is True
    assert list(found["sections"]) == ["machine", "checks", "attention", "products", "decode", "shapes", "throughput"]
    for name, section in found["sections"].items():
        assert section["failed"] == []
        assert section["figures"], name
        assert all(math.isfinite(figure["value"]) for figure in section["figures"]), name
    assert found["sections"]["throughput"]["remarks"] == [
        "transformers is not installed: there is nothing to compare with."
    ]
    equal = next(each for each in found["sections"]["checks"]["figures"] if each["name"].startswith("cases that equal"))
    assert equal["value"] == 1.0
    goals = [
        figure["goal"] for section in found["sections"].values() for figure in section["figures"] if figure["goal"]
    ]
    assert {"≥ 85%", "≥ 50%", "≥ 80%", "≤ 3%"} <= set(goals)


def test_a_section_that_fails_is_told_in_a_sentence_and_the_others_go_on(tmp_path):
    path = tmp_path / "found.json"
    done = run(
        tmp_path, "--device", "cpu", "--only", "products", "machine", "--json", str(path),
        absent=(*ABSENT, "octavo_kernels.triton.experts"),
    )  # fmt: skip
    assert done.returncode == 1
    sections = json.loads(path.read_text())["sections"]
    assert len(sections["products"]["failed"]) == 1
    assert sections["machine"]["failed"] == []
    assert sections["machine"]["figures"]
    assert "Traceback" not in done.stderr


def test_what_the_device_will_not_do_for_a_process_any_more_goes_on_in_another(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    options = gpu._parse(["--device", "cpu", "--only", "machine", "attention"])
    machine, products = gpu._run_elsewhere(["machine", "products"], options, 100.0)
    assert (machine.name, machine.failed, products.failed) == ("machine", [], [])
    assert any(figure.name.startswith("int4") for figure in products.figures)
    (late,) = gpu._run_elsewhere(["products"], options, -1.0)
    assert late.failed == ["not begun: -1 seconds were over"]


def test_without_a_gpu_it_says_what_can_be_done_instead(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--device cpu" in done.stderr


def test_what_it_tunes_is_a_table_that_serving_reads(tmp_path):
    path = tmp_path / "table.json"
    done = run(tmp_path, "--device", "cpu", "--tune", "--table", str(path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    entries = read_table(path)
    assert {"attention", "linear", "grouped", "rows", "rope_cache", "sampling"} <= {entry.kernel for entry in entries}


def test_the_interpreter_never_writes_a_table_that_serving_would_read(tmp_path):
    done = run(tmp_path, "--device", "cpu", "--tune")
    assert done.returncode == 2
    assert "--table" in done.stdout


@pytest.mark.parametrize("number", range(len(DRAWS)))
def test_its_definition_of_a_draw_takes_the_engines_token_and_no_other(number):
    row, logits = DRAWS[number], (np.random.default_rng(number).standard_normal(400) * 3).astype(np.float32)
    settings = prepare(
        400, seed=row.seed, choice=row.choice, temperature=0.0 if row.greedy else row.temperature, top_k=row.top_k,
        top_p=row.top_p, min_p=row.min_p,
    )  # fmt: skip
    token = native_sample(logits[None], [RowSampling(settings, row.position, 0)])[0].tokens[0]
    taken = [each for each in range(400) if drawn(logits.astype(np.float64), row, each)]
    assert taken == [token]


def test_its_uniform_is_philox_as_published():
    # Random123's known answer for counter 0 and key 0 begins 6627e8d5 e169c58d.
    assert uniform(0, 0, 0) == float((0x6627E8D5 << 21) ^ (0xE169C58D >> 11)) * 2.0**-53
