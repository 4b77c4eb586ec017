"""Workloads are the same lists everywhere: published figures were taken on them."""

import itertools
import json

import pytest

from octavo_engine.bench import workload
from octavo_engine.bench.workload import Item, WorkloadError


@pytest.mark.parametrize(
    ("items", "digest"),
    [
        (workload.mixed(), "9095b492fa43dcd4"),
        (workload.mixed(16, seed=3), "685ac55f8c2706e8"),
        (workload.skewed(), "aa731558c1ad21d7"),
        (workload.fixed(8, 128, 128), "067c8897b8ba2c7b"),
        (workload.shared_prefix(), "88f885ccb172a2dc"),
    ],
)
def test_equal_seeds_give_the_published_lists(items, digest):
    assert workload.digest(items) == digest


def test_lengths_are_as_stated():
    mixed, skewed, shared = workload.mixed(500), workload.skewed(1000), workload.shared_prefix(100)
    assert all(16 <= len(item.prompt) <= 256 and 8 <= item.max_tokens <= 256 for item in mixed)
    long = [item for item in skewed if item.max_tokens >= 256]
    assert 60 < len(long) < 140
    assert all(8 <= item.max_tokens <= 32 for item in skewed if item not in long)
    assert {item.prompt[:512] for item in shared} == {shared[0].prompt[:512]}
    assert all(16 <= len(item.prompt) - 512 <= 64 and item.max_tokens == 32 for item in shared)
    assert all(100 <= token <= 300 for item in workload.mixed(20, vocab=300) for token in item.prompt)


@pytest.mark.parametrize("vocab", [0, 31, 99, 100])
def test_a_small_vocabulary_is_drawn_from_as_a_whole(vocab):
    items = workload.mixed(4, vocab=vocab) + workload.shared_prefix(2, vocab=vocab)
    drawn = {token for item in items for token in item.prompt}
    assert drawn <= set(range(vocab + 1))
    assert vocab == 100 or len(drawn) == vocab + 1


def test_items_travel_as_json():
    items = workload.poisson(workload.mixed(5), rate=2.0)
    assert workload.from_json(workload.to_json(items)) == items


def test_poisson_arrivals_begin_at_once_and_keep_the_rate():
    items = workload.poisson(workload.fixed(4000, 1, 1), rate=8.0)
    gaps = [after.arrival - before.arrival for before, after in itertools.pairwise(items)]
    assert items[0].arrival == 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 8, rel=0.05)


def test_an_azure_trace_keeps_arrivals_and_lengths(tmp_path):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,5000,3000\n"
    )
    first, second = workload.read_trace(trace, longest=1000)
    assert (len(first.prompt), first.max_tokens, first.arrival) == (374, 44, 0.0)
    assert (len(second.prompt), second.max_tokens) == (500, 500)
    assert second.arrival == pytest.approx(4.314579)


def test_equal_hash_ids_of_a_mooncake_trace_are_equal_prefixes(tmp_path):
    trace = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 2]},
        {"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]},
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    first, second = workload.read_trace(trace)
    assert (len(first.prompt), len(second.prompt), second.arrival) == (600, 700, 2.0)
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:600] != second.prompt[512:600]


def test_a_trace_rescaled_to_a_rate_keeps_its_bursts():
    items = [Item((1,), 1, arrival) for arrival in (0.0, 1.0, 1.0, 4.0)]
    assert [item.arrival for item in workload.rescale(items, rate=3.0)] == [0.0, 0.25, 0.25, 1.0]


@pytest.mark.parametrize(
    "content", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', "TIMESTAMP,ContextTokens,GeneratedTokens\n"]
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path, content):
    trace = tmp_path / "trace"
    trace.write_text(content)
    with pytest.raises(WorkloadError, match=r"(holds no request|give a CSV)"):
        workload.read_trace(trace)
