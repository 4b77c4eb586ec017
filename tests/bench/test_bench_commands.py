"""`octavo bench …` end to end on the scripted model: a table, the same figures as JSON, bad input in one sentence."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from octavo_engine.bench.own_server import own_server
from octavo_engine.bench.workload import WorkloadError, fixed
from octavo_engine.commands import bench_options

URI = "scripted://?blocks=1024&max_len=1024"


def bench(*arguments, code=0):
    command = [sys.executable, "-m", "octavo_engine.cli", "bench", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran


def test_throughput_in_process_and_over_http(tmp_path):
    report = tmp_path / "report.json"
    ran = bench("throughput", URI, "--requests", 12, "--repeat", 2, "--over-http", "--clients", 4, "--json", report)
    assert "prompt + output tok/s" in ran.stdout
    found = json.loads(report.read_text())
    assert found["machine"]["cpu"]
    assert found["configuration"]["model"] == URI
    assert found["complete"] is True
    assert found["command"].startswith(f"octavo bench throughput '{URI}' --requests 12")
    assert found["command"] in ran.stdout
    figures = found["figures"]
    assert figures["in_process"]["total_rate"]["count"] == 2
    assert len(set(figures["in_process"]["outputs"])) == 2
    assert figures["over_http"]["failed"] == 0
    assert figures["over_http"]["ratio"]["count"] == 2
    assert set(figures["over_http"]["cpu"]) >= {"api process", "engine process", "load generator"}


def test_latency_of_one_stream(tmp_path):
    report = tmp_path / "report.json"
    bench("latency", URI, "--prompt", 32, "--output", 16, "--prefill", 64, "--repeat", 3, "--json", report)
    found = json.loads(report.read_text())["figures"]["latency"]
    assert found["decode_rate"]["count"] == found["prefill_rate"]["count"] == 3
    assert found["bandwidth_share"] is None


def test_headline_asserts_identical_tokens_and_draws(tmp_path):
    report = tmp_path / "report.json"
    ran = bench("headline", URI, "--short", "--max-num-batched-tokens", 512, "--json", report, "--svg", tmp_path)
    assert "Identical tokens in all configurations" in ran.stdout
    found = json.loads(report.read_text())["figures"]["headline"]
    assert found["utilization"]["contiguous"] < 0.6 < 0.9 < found["utilization"]["paged"]
    assert found["sharing"]["blocks"] * 3 < found["sharing"]["blocks_without"]
    compound = found["compound"]
    assert compound["both"] > 2 * max(compound["neither"], compound["paged"], compound["shared"])
    for name in ("headline-batching.svg", "headline-memory.svg"):
        ElementTree.parse(tmp_path / name)


def test_serve_at_a_share_of_saturation(tmp_path):
    report = tmp_path / "report.json"
    with own_server("scripted://?step=1ms&blocks=1024&max_len=512") as server:
        ran = bench(
            *("serve", server.url, "--workload", "fixed:16,8", "--find-saturation", "--clients", 8),
            *("--saturation-seconds", 1, "--duration", 1, "--vocab", 255, "--json", report, "--svg", tmp_path),
        )
    assert "goodput" in ran.stdout
    found = json.loads(report.read_text())["figures"]
    assert found["saturation"] > 0
    assert found["failed"] == 0
    assert found["requests"] == pytest.approx(found["saturation"] * 0.7, abs=1)
    assert set(found["ttft"]) == {"p50", "p90", "p95", "p99", "mean"}
    ElementTree.parse(tmp_path / "serve-latency.svg")


def test_perplexity_of_configurations_beside_the_reference(tmp_path):
    report = tmp_path / "report.json"
    bench("perplexity", URI, "--windows", 2, "--window", 128, "-c", "auto", "--json", report)
    reference, other = json.loads(report.read_text())["figures"]
    assert reference["configuration"] == "float32"
    assert (other["configuration"], other["excess"], other["tokens"]) == ("auto", 0.0, 2 * 127)
    assert other["perplexity"] == reference["perplexity"] > 1


def test_a_trace_keeps_its_own_arrivals_unless_a_rate_is_given(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:15:4{second}.0000000,30,4" for second in (0, 1, 5))
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    items = bench_options.workload(str(trace), 10, 300)(0)
    assert [item.arrival for item in bench_options.arrivals(items, str(trace), 0)] == [0, 1, 5]
    assert [item.arrival for item in bench_options.arrivals(items, str(trace), 2.0)] == [0, 0.2, 1]
    assert len(bench_options.workload(str(trace), 2, 300)(0)) == 2
    timed = bench_options.arrivals(fixed(3, 4, 4), "fixed:4,4", 5.0)
    assert timed[0].arrival == 0 < timed[1].arrival < timed[2].arrival


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("throughput", URI, "--workload", "nonsense"), 2, "is no workload"),
        (("throughput", URI, "--workload", "fixed:4"), 2, "is no workload"),
        (("throughput", "/nowhere"), 1, "There is no model at /nowhere"),
        (("throughput", URI, "--kv-cache-memory", "lots"), 2, "is no size"),
        (("throughput", URI, "--max-model-len", "9999"), 1, "--max-model-len"),
        (("serve", "http://127.0.0.1:1", "--model", "x"), 1, "Nobody answers"),
        (("serve", "https://x", "--model", "x"), 1, "plain http URL"),
        (("throughput", URI, "--json", "/nowhere/x.json"), 2, "/nowhere/x.json cannot be written"),
        (("throughput", URI, "--kv-cache-dtype", "int3"), 2, "'int8', 'bf16'"),
        (("serve", "http://127.0.0.1:1", "--model", "x", "--rate", "inf"), 2, "is no number to measure with"),
        (("serve", "http://127.0.0.1:1", "--api-key-file", "/nowhere"), 2, "a file that holds one API key"),
        (("perplexity", URI, "-c", "float13"), 1, "is no configuration"),
        (("perplexity", URI, "-c", "auto/auto/int4"), 1, "is no configuration"),
        (("perplexity", URI, "--text", "/nowhere"), 1, "cannot be read"),
        (("perplexity", URI, "--windows", "100000"), 1, "fewer --windows"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(arguments, code, sentence):
    ran = bench(*arguments, code=code)
    told = " ".join(ran.stderr.replace("│", " ").split())
    assert sentence in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "row", ['{"hash_ids": 3, "input_length": 4, "output_length": 4, "timestamp": 0}', "TIMESTAMP\n2023"]
)
def test_a_damaged_trace_is_told_of(row, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text(row)
    with pytest.raises(WorkloadError, match="is no trace"):
        bench_options.workload(str(trace), 10, 300)(0)


def test_texts_of_one_name_are_two_texts(tmp_path):
    for folder, words in (("a", "one two three four " * 90), ("b", "nine eight seven " * 90)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(words)
    paths = [str(tmp_path / folder / "x.txt") for folder in "ab"]
    report = tmp_path / "report.json"
    texts = [argument for path in paths for argument in ("--text", path)]
    bench("perplexity", URI, "-c", "auto", "--window", "64", "--windows", "2", *texts, "--json", str(report))
    rows = json.loads(report.read_text())["figures"]
    assert [row["text"] for row in rows[-2:]] == paths
    # The same arithmetic as the reference's: nothing is in excess of it.
    assert [row["excess"] for row in rows] == [0.0] * len(rows)
