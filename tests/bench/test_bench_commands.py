"""`octavo bench …` end to end on the scripted model: a table, the same figures as JSON, bad input in one sentence."""

import json
import signal
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
    inputs = {"workload": "mixed", "requests": 12, "repeat": 2, "seed": 0, "clients": 4, "perplexity-windows": 4}
    assert inputs.items() <= found["configuration"].items()
    figures = found["figures"]
    rates = figures["in_process"]["total_rate"]
    assert rates["count"] == len(rates["values"]) == 2
    assert rates["median"] == pytest.approx(sum(rates["values"]) / 2)
    for name in ("seconds", "prompt_tokens", "output_tokens", "steps", "preemptions", "peak_blocks"):
        assert len(figures["in_process"][name]) == 2, name
    taken = zip(*(figures["in_process"][name] for name in ("prompt_tokens", "output_tokens", "seconds")), strict=True)
    assert [(prompt + output) / seconds for prompt, output, seconds in taken] == pytest.approx(rates["values"])
    heading = next(line for line in ran.stdout.splitlines() if "latency, ms" in line)
    assert heading.split()[3:] == ["┃", "p50", "┃", "p90", "┃", "p95", "┃", "p99", "┃", "mean", "┃"]
    assert len(set(figures["in_process"]["outputs"])) == 2
    assert figures["over_http"]["failed"] == 0
    assert figures["over_http"]["ratio"]["count"] == 2
    assert set(figures["over_http"]["cpu"]) >= {"api process", "engine process", "load generator"}


def test_the_baselines_write_the_same_tokens(tmp_path):
    report = tmp_path / "report.json"
    found = []
    for baseline in ((), ("--scheduler", "static"), ("--kv-allocation", "contiguous", "--no-enable-prefix-caching")):
        bench("throughput", URI, "--requests", 6, "--repeat", 1, *baseline, "--json", report)
        found.append(json.loads(report.read_text()))
    assert len({tuple(one["figures"]["in_process"]["outputs"]) for one in found}) == 1
    chosen = [
        [one["configuration"][name] for name in ("scheduler", "kv-allocation", "prefix-sharing")] for one in found
    ]
    assert chosen == [["continuous", "paged", "on"], ["static", "paged", "on"], ["continuous", "contiguous", "off"]]


def test_one_interrupt_ends_a_command_without_a_trace(tmp_path):
    uri = "scripted://?blocks=1024&max_len=1024&step=5ms"
    command = [sys.executable, "-m", "octavo_engine.cli", "bench", "throughput", uri, "--workload", "fixed:8,1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert any("in process 1/5" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert (out, error) == ("", "")


def test_latency_of_one_stream(tmp_path):
    report = tmp_path / "report.json"
    bench("latency", URI, "--prompt", 32, "--output", 16, "--prefill", 64, "--repeat", 3, "--json", report)
    found = json.loads(report.read_text())["figures"]["latency"]
    assert found["decode_rate"]["count"] == found["prefill_rate"]["count"] == 3
    assert found["bandwidth_share"] is None
    inputs = {"prompt": 32, "output": 16, "prefill": 64, "repeat": 3}
    assert inputs.items() <= json.loads(report.read_text())["configuration"].items()


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
    written = json.loads(report.read_text())
    inputs = {"workload": "fixed:16,8", "duration": 1, "share": 0.7, "clients": 8, "seed": 0, "vocab": 255}
    assert inputs.items() <= written["configuration"].items()
    assert written["machine"]["role"] == "load generator"
    found = written["figures"]
    assert written["configuration"]["requests"] == found["requests"]
    assert found["saturation"] > 0
    assert found["failed"] == 0
    assert found["requests"] == pytest.approx(found["saturation"] * 0.7, abs=1)
    assert set(found["ttft"]) == {"p50", "p90", "p95", "p99", "mean"}
    ElementTree.parse(tmp_path / "serve-latency.svg")


@pytest.mark.parametrize(
    ("arguments", "flag", "other"),
    [
        (("throughput", URI, "--clients", 4), "--clients", "without --over-http"),
        (("headline", URI, "--short", "--repeat", 2), "--repeat", "with --short"),
        (("serve", "http://x", "--share", 0.5), "--share", "without --find-saturation"),
        (("serve", "http://x", "--clients", 4), "--clients", "without --find-saturation"),
        (("serve", "http://x", "--saturation-seconds", 4), "--saturation-seconds", "without --find-saturation"),
        (("serve", "http://x", "--find-saturation", "--rate", 2), "--rate", "with --find-saturation"),
        (("serve", "http://x", "--rate", 2, "-n", 4, "--duration", 5), "--duration", "with --requests"),
        (("serve", "http://x", "--duration", 5), "--duration", "without --rate"),
        (("serve", "http://x", "--longest", 50), "--longest", "without a trace"),
    ],
)
def test_what_would_count_for_nothing_is_refused(arguments, flag, other):
    told = " ".join(bench(*arguments, code=2).stderr.split())
    assert f"Invalid value for '{flag}': It counts for nothing {other}" in told


def test_the_first_seconds_of_a_trace(tmp_path):
    trace = str(trace_of(tmp_path, *[(8, 4)] * 9))
    for seconds, count in ((0.35, 4), (60, 9), (0, 9)):
        assert len(bench_options.workload(trace, 0, 300, seconds=seconds)(0)) == count


def trace_of(folder, *lengths):
    """A trace of requests 0.1 s apart, each (prompt, output) tokens long."""
    trace = folder / "trace.csv"
    rows = (f"2023-11-16 18:15:4{index / 10:.1f},{prompt},{output}" for index, (prompt, output) in enumerate(lengths))
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return trace


def test_a_run_whose_every_request_fails_is_a_sentence_and_no_table(tmp_path):
    report = tmp_path / "report.json"
    with own_server("scripted://?blocks=64&max_len=64") as server:
        arguments = ("serve", server.url, "--workload", "fixed:100,8", "-n", 2, "--vocab", 255, "--json", report)
        ran = bench(*arguments, code=1)
    assert ran.stdout == ""
    assert "Every one of the 2 requests failed, the first because the server answered 400" in ran.stderr
    found = json.loads(report.read_text())["figures"]
    assert (found["requests"], found["failed"], found["ttft"]["p50"]) == (2, 2, "infinite")
    assert found["first_error"] in ran.stderr
    assert found["ttft"]["mean"] is found["saturation"] is None


def test_a_token_that_the_server_does_not_know_names_the_option():
    with own_server("scripted://?blocks=64&max_len=64") as server:
        ran = bench("serve", server.url, "--workload", "fixed:8,2", "-n", 1, code=1)
    assert "--vocab is 49000: give the model's largest token id." in ran.stderr


def test_a_request_that_fails_among_others_is_said_beside_the_table(tmp_path):
    report = tmp_path / "report.json"
    trace = trace_of(tmp_path, (16, 1), (100, 8), (16, 1))
    with own_server("scripted://?blocks=64&max_len=64") as server:
        ran = bench("serve", server.url, "--workload", trace, "--vocab", 255, "--json", report)
    assert "1 of them failed" in ran.stdout
    assert "1 of 3 requests failed, the first because the server answered 400" in ran.stderr
    found = json.loads(report.read_text())["figures"]
    assert (found["failed"], found["ttft"]["p99"]) == (1, "infinite")
    assert 0 < found["ttft"]["p50"] < 60
    # One message each: there was no gap to measure, except the infinite ones of the failure.
    assert found["itl"] == {"p50": "infinite", "p90": "infinite", "p95": "infinite", "p99": "infinite", "mean": None}


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
        (("throughput", URI, "--over-http", "--threads", "999"), 2, "leave it off with --over-http"),
        (("throughput", URI, "--threads", "5000"), 2, "less than or equal to 1024"),
        (("throughput", "/nowhere"), 1, "There is no model at /nowhere"),
        (("throughput", URI, "--kv-cache-memory", "lots"), 2, "is no size"),
        (("throughput", URI, "--max-model-len", "9999"), 1, "--max-model-len"),
        (("serve", "http://127.0.0.1:1", "--model", "x"), 1, "Nobody answers"),
        (("serve", "https://x", "--model", "x"), 1, "plain http URL"),
        (("throughput", URI, "--json", "/nowhere/x.json"), 2, "/nowhere/x.json cannot be written"),
        (("headline", URI, "--svg", "/dev/null/x"), 2, "/dev/null/x cannot be made"),
        (("throughput", URI, "--kv-cache-dtype", "int3"), 2, "'int8', 'bf16'"),
        (("serve", "http://127.0.0.1:1", "--model", "x", "--rate", "inf"), 2, "is no number to measure with"),
        (("serve", "http://127.0.0.1:1", "--api-key-file", "/nowhere"), 2, "a file that holds one API key"),
        (("perplexity", URI, "-c", "float13"), 1, "is no configuration"),
        (("perplexity", URI, "-c", "auto/auto/int4"), 1, "is no configuration"),
        (("perplexity", URI, "--text", "/nowhere"), 1, "cannot be read"),
        (("perplexity", URI, "--windows", "100000"), 1, "a smaller --windows"),
        (("perplexity", URI, "--windows", "1", "--window", "1024"), 1, "use --window 1023 or less"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(arguments, code, sentence):
    ran = bench(*arguments, code=code)
    told = " ".join(ran.stderr.split())
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
