"""The in-process harness runs the real loop: same tokens under every configuration, honest counts of the cache."""

import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.bench import workload
from octavo_engine.bench.harness import BenchError, Harness
from octavo_engine.bench.headline import SHORT, Bench, UnpaddedStatic, without_padding
from octavo_engine.bench.observe import stored_tokens
from octavo_engine.bench.own_server import serve_flags
from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.step import RowResult, StepResult
from octavo_engine.core.stop import StopRule
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker import start
from octavo_engine.worker.sizing import StartError


def make(uri="scripted://?blocks=128&max_len=512", **settings):
    values = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "socket_folder": ""} | settings
    return Harness(EngineConfig(model=uri, **values), lambda stage, fraction: None)


def test_every_configuration_writes_the_same_tokens():
    harness = make()
    items = workload.mixed(24, vocab=harness.vocab)
    runs = {
        name: harness.run(items, **changes)
        for name, changes in {
            "paged": {},
            "unshared": {"prefix_sharing": False},
            "contiguous": {"kv_allocation": "contiguous"},
            "static": {"scheduler": "static"},
            "narrow": {"max_num_seqs": 2, "max_num_batched_tokens": 16},
        }.items()
    }
    assert len({run.digest for run in runs.values()}) == 1
    run = runs["paged"]
    assert run.output_tokens == sum(item.max_tokens for item in items)
    assert [len(tokens) for tokens in run.tokens] == [item.max_tokens for item in items]
    assert len(run.ttft) == len(items)
    assert all(0 < ttft <= run.seconds for ttft in run.ttft)
    assert runs["contiguous"].observed.kv_utilization < 0.5 < 0.9 < run.observed.kv_utilization <= 1
    assert runs["contiguous"].observed.in_flight <= 4 < run.observed.in_flight


def test_static_without_padding_pads_nothing_and_writes_the_same():
    harness = make()
    items = workload.skewed(12, vocab=harness.vocab)
    items = [item._replace(max_tokens=min(item.max_tokens, 64)) for item in items]
    padded = harness.run(items, scheduler="static", max_num_seqs=4)
    bare = harness.run(items, adapt=without_padding, scheduler="static", max_num_seqs=4)
    assert padded.observed.padding > 0 == bare.observed.padding
    assert padded.digest == bare.digest
    assert isinstance(without_padding(harness.build(scheduler="static")).scheduler, UnpaddedStatic)


def test_a_shared_prefix_is_held_once():
    harness = make("scripted://?blocks=512&max_len=512")
    items = workload.shared_prefix(8, vocab=harness.vocab, system=256, output=4)
    shared, unshared = (harness.run(items, prefix_sharing=sharing) for sharing in (True, False))
    assert shared.digest == unshared.digest
    assert shared.observed.peak_blocks * 2 < unshared.observed.peak_blocks
    assert shared.snapshot.prefix_hit_tokens == 7 * 256


def test_scoring_gives_each_prompt_token_but_the_first_its_log_probability():
    harness = make()
    items = [item._replace(max_tokens=1) for item in workload.mixed(3, vocab=harness.vocab)]
    run = harness.run(items, score=True)
    assert [len(found) for found in run.logprobs] == [len(item.prompt) - 1 for item in items]
    assert all(value <= 0 for found in run.logprobs for value in found)


def test_a_settled_configuration_states_what_was_measured():
    harness = make(max_num_seqs=0, max_num_batched_tokens=0)
    config = harness.settle()
    assert min(config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len, config.kv_cache_memory) > 0
    assert harness.describe()["max-num-seqs"] == config.max_num_seqs
    assert harness.build().scheduler.config.groups == harness.build().scheduler.config.groups


def test_a_cache_that_is_there_needs_no_memory_beside_it(monkeypatch):
    harness = make(max_num_seqs=4, kv_cache_memory=0)
    config = harness.settle()
    monkeypatch.setattr(start, "memory_left", lambda: 0)
    items = workload.fixed(2, 4, 3, vocab=harness.vocab)
    same = harness.run(items)
    smaller = harness.run(items, kv_cache_memory=config.kv_cache_memory // 2)
    assert same.digest == smaller.digest
    with pytest.raises(StartError, match="does not fit"):
        harness.run(items, kv_cache_memory=config.kv_cache_memory)


def test_claims_that_do_not_fit_are_told_in_the_command_s_own_words(monkeypatch):
    harness = make("scripted://?blocks=64&max_len=1024", kv_cache_memory=0)
    harness.settle()
    monkeypatch.setattr(start, "memory_left", lambda: 0)
    with pytest.raises(BenchError, match=r"The claims need 0\.\d+Gi for the KV cache.*--short"):
        Bench(harness, SHORT, lambda name: None).run()


def test_all_requests_may_wait_however_many_they_are():
    harness = make(max_queue_requests=4, max_queue_tokens=64)
    run = harness.run(workload.fixed(40, 8, 2, vocab=harness.vocab))
    assert run.output_tokens == 80
    flags = serve_flags(harness.config)
    assert flags[flags.index("--max-queue-requests") + 1] == flags[flags.index("--max-queue-tokens") + 1] == "0"


def test_an_interrupt_ends_the_run_between_two_steps():
    harness = make("scripted://?blocks=128&max_len=512&step=1ms")
    told = []

    def tell(done, whole):
        told.append((done, whole))
        if len(told) == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        harness.run(workload.fixed(1, 4, 400, vocab=harness.vocab), tell)
    done, whole = told[-1]
    assert done < whole == 400


def test_a_request_that_fails_ends_the_bench_with_a_sentence():
    harness = make("scripted://?blocks=128&max_len=512&nan=200")
    with pytest.raises(BenchError, match="ended with 'error'"):
        harness.run([workload.Item((100, 200), 3)])
    for prompt, output in ((600, 3), (500, 13)):
        with pytest.raises(BenchError, match=rf"{prompt} tokens and generates {output}, which a context of 512"):
            harness.run([workload.Item((100,) * prompt, output)])
    assert harness.run([workload.Item((100,) * 500, 12)]).output_tokens == 12
    with pytest.raises(StartError, match="max-model-len"):
        harness.run([workload.Item((100,), 3)], max_model_len=4096)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.booleans()), min_size=1, max_size=6),
    st.integers(4, 64),
)
def test_tokens_stored_are_the_distinct_slots_that_hold_one(requests, budget):
    """Counted beside it by brute force: each (block, offset) a running sequence has computed, once."""
    config = SchedulerConfig(
        groups=(CacheGroup(32),), max_model_len=128, max_num_seqs=6, max_num_batched_tokens=max(budget, 6), block_size=4
    )
    scheduler = create_scheduler(config)
    for identity, (prompt, output, common) in enumerate(requests):
        tokens = tuple(range(prompt)) if common else tuple(1000 + identity * 100 + index for index in range(prompt))
        scheduler.submit(Request((identity,), tokens, StopRule(max_tokens=output)))
    while (plan := scheduler.schedule()) is not None:
        slots = {
            (sequence.tables[0][position // 4], position % 4)
            for sequence in scheduler.running
            for position in range(sequence.num_computed)
        }
        assert stored_tokens(scheduler) == len(slots)
        rows = tuple(RowResult((7,) if row.samples else ()) for row in plan.rows)
        scheduler.commit(plan, StepResult(plan.number, rows))
