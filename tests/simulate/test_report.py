"""The command and what it writes."""

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
import typer
from typer.testing import CliRunner

from octavo_operator.simulate.calibrate import Calibration, from_bench, from_scripted
from octavo_operator.simulate.catalogue import ENTRIES
from octavo_operator.simulate.cli import simulate
from octavo_operator.simulate.faultruns import FAULT_RUNS

app = typer.Typer()
app.command()(simulate)
SHORT = ["--trace", "steady", "--seconds", "240", "--cold-start", "20", "--jobs", "1"]


def test_the_table_the_json_and_the_pictures_say_the_same(tmp_path):
    file = tmp_path / "figures.json"
    command = [*SHORT, "--policy", "octavo", "--policy", "hpa-kv", "--json", str(file), "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    content = json.loads(file.read_text())
    ours = content["policies"][0]
    assert [row["policy"] for row in content["policies"]] == ["octavo", "hpa-kv"]
    assert {"slo_attainment", "gpu_hours", "ttft_p99", "reversals", "cut"} <= ours.keys()
    assert f"{ours['slo_attainment']:.2%}" in ran.output
    picture = ElementTree.parse(tmp_path / "out" / "steady-20s.svg").getroot()
    described = picture.find("{http://www.w3.org/2000/svg}desc")
    assert described is not None
    assert f"{ours['gpu_hours']:.2f} GPU-hours" in (described.text or "")
    assert json.loads((tmp_path / "out" / "steady-20s.json").read_text()) == content


def test_a_sweep_compares_at_equal_attainment(tmp_path):
    command = [*SHORT, "--policy", "octavo", "--policy", "fixed", "--sweep", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    content = json.loads((tmp_path / "steady-20s.json").read_text())
    assert set(content["ours_over_theirs"]) == {"fixed"}
    assert len(content["policies"]) == len(ENTRIES["octavo"].sweep()) + len(ENTRIES["fixed"].sweep())
    assert (tmp_path / "steady-20s-curves.svg").exists()


@pytest.mark.parametrize("policy", ENTRIES)
def test_every_policy_runs(policy):
    ran = CliRunner().invoke(app, [*SHORT, "--policy", policy])
    assert ran.exit_code == 0, ran.output
    assert policy in ran.output


@pytest.mark.parametrize("fault", FAULT_RUNS)
def test_every_fault_run_runs(fault):
    ran = CliRunner().invoke(app, ["--fault", fault, "--cold-start", "20", "--jobs", "1", "--seconds", "600"])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "magic"], "choose from octavo"),
        (["--trace", "absent.csv"], "neither a file nor one of"),
        (["--fault", "fire"], "there is no fault run"),
        (["--routing", "magic"], "there is no routing policy"),
        (["--pod", "real://"], "scripted://"),
        (["--pod", "scripted://?blocks=many"], "is not usable"),
        (["--min-replicas", "5", "--max-replicas", "2"], "is above"),
        (["--bench", "absent.json"], "cannot be read"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, sentence):
    ran = CliRunner().invoke(app, arguments, terminal_width=400, env={"COLUMNS": "400"})
    assert ran.exit_code == 2
    assert sentence in ran.output


def report(path, prompt: int, step: float, rate: float, prefill: int = 512) -> None:
    """What `octavo bench latency --json` writes of an engine whose steps take `step` seconds and 1 / `rate` a token."""
    figures = {
        "prompt": prompt,
        "output": 100,
        "prefill_tokens": prefill,
        "decode_rate": {"median": 1 / (step + 1 / rate)},
        "prefill_rate": {"median": prefill / (step + prefill / rate)},
    }
    path.write_text(json.dumps({"figures": {"latency": figures, "perplexity": None}}))


def test_a_pod_is_calibrated_from_bench_reports(tmp_path):
    one = tmp_path / "one.json"
    report(one, 1000, 0.015, 4000.0)
    found = from_bench([one], Calibration())
    assert found.step_seconds == pytest.approx(0.015)
    assert found.prefill_tokens_per_second == pytest.approx(4000.0)
    assert found.context_token_seconds == 0.0


def test_two_prompt_lengths_give_the_time_of_the_context(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for path, prompt in ((one, 1000), (two, 8000)):
        report(path, prompt, 0.010 + 1e-6 * (prompt + 50), 5000.0)
    found = from_bench([one, two], Calibration())
    assert found.step_seconds == pytest.approx(0.010)
    assert found.context_token_seconds == pytest.approx(1e-6)


def test_a_pod_is_calibrated_from_a_scripted_model():
    found = from_scripted("scripted://?prefill=4000&step=15ms&blocks=64&block_size=32&eos=0")
    assert (found.prefill_tokens_per_second, found.step_seconds, found.blocks, found.block_size) == (
        4000,
        0.015,
        64,
        32,
    )
    assert math.isclose(from_scripted("scripted://").step_seconds, 0.02)


def test_what_is_no_bench_report_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="octavo bench latency"):
        from_bench([path], Calibration())
