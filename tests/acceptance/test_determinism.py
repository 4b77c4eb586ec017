"""The table of determinism: its requests and comparisons are what they say, and its short form is all identical."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest

from octavo_engine.bench.harness import Harness
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import Refused, Snapshot, Step, TokensOut
from tests.acceptance.determinism import asking, table
from tests.acceptance.determinism.circumstances import BASE, CIRCUMSTANCES, REFERENCE, Circumstance
from tests.acceptance.determinism.drafts import Oracle
from tests.acceptance.determinism.driving import drive
from tests.acceptance.determinism.preempting import LEAST, MOST, PreemptingScheduler
from tests.acceptance.determinism.told import Listener, NotTold, Told, digest, first_difference
from tests.acceptance.determinism.trying import Cell, digests_by_precision
from tests.acceptance.lines_5 import of_cells
from tests.worker.harness import snapshot

IDS = asking.Ids(3, 383, 2)


# --- Requests -------------------------------------------------------------------------------------------------------
def test_equal_seeds_give_equal_requests_and_others_do_not():
    assert asking.make(40, 1, IDS) == asking.make(40, 1, IDS)
    assert asking.make(40, 1, IDS) != asking.make(40, 2, IDS)


def test_all_kinds_come_and_all_fit():
    asked = asking.make(table.REQUESTS, 0, IDS)
    assert {each.kind for each in asked} == set(asking.KINDS)
    assert max(each.longest for each in asked) <= asking.MAX_MODEL_LEN
    assert min(each.submit.stop.max_tokens for each in asked) >= asking.SHORTEST_ANSWER > LEAST
    assert sum(each.submit.n > 1 for each in asked) >= 20
    lengths = [each.prompt_tokens for each in asked]
    assert min(lengths) < 16 < 100 < max(lengths), "shorter than a block, and longer than many"
    prompts = [each.submit.prompt[: 4 * 32] for each in asked if each.prompt_tokens >= 32]
    assert len(set(prompts)) < len(prompts), "some share their beginning"


def test_the_working_set_is_that_of_the_longest():
    asked = asking.make(20, 0, IDS)
    lengths = sorted((each.longest for each in asked for _ in range(each.submit.n)), reverse=True)
    assert asking.working_set_blocks(asked, 2, 16) == sum(-(-length // 16) for length in lengths[:2])


# --- Comparison -----------------------------------------------------------------------------------------------------
def records(*logprobs):
    return b"".join(struct.pack("<fi", value, 1) for value in logprobs)


ASKED = asking.make(8, 0, IDS)[:1]  # greedy, log-probabilities without alternatives
TOLD = Told([5, 6, 7], "stop", -1, records(-1, -2, -3))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"tokens": [5, 9, 7]}, "token 1 was 6 and is 9"),
        ({"tokens": [5, 6]}, "3 tokens became 2"),
        ({"logprobs": records(-1, -2, -3.0000002)}, "log-probability 2 was"),
        ({"logprobs": records(-1, -2)}, "3 records of the log-probability became 2"),
        ({"prompt_logprobs": records(-1)}, "0 records of the prompt's log-probability became 1"),
        ({"finish": "length"}, "the end was stop (-1) and is length (-1)"),
        ({"stop_reason": 7}, "the end was stop (-1) and is stop (7)"),
    ],
)
def test_the_first_difference_is_named(changed, said):
    found = first_difference(ASKED, {(0, 0): TOLD}, {(0, 0): msgspec.structs.replace(TOLD, **changed)})
    assert said in found
    assert bool(found) == bool(said)


def test_missing_and_further_choices_are_differences():
    assert "nothing was told" in first_difference(ASKED, {(0, 0): TOLD}, {})
    assert "(0, 1)" in first_difference(ASKED, {(0, 0): TOLD}, {(0, 0): TOLD, (0, 1): TOLD})


def test_a_digest_names_all_of_it():
    other = msgspec.structs.replace(TOLD, logprobs=records(-1, -2, -3.0000002))
    assert digest({(0, 0): TOLD, (1, 0): other}) == digest({(1, 0): other, (0, 0): TOLD})
    assert digest({(0, 0): TOLD}) != digest({(0, 0): other})


def test_a_listener_joins_pieces_and_takes_no_failure():
    listener = Listener(first=10)
    for tokens, finish in (((1, 2), ""), ((3,), "length")):
        listener.take(Step((TokensOut(10, 1, tokens, finish, logprobs=b"x"),), snapshot()))
    assert listener.told == {(0, 1): Told([1, 2, 3], "length", -1, b"xx")}
    assert listener.ended == [(0, 1)]
    with pytest.raises(NotTold, match="not finite"):
        listener.take(Step((TokensOut(11, 0, (), "error", "not finite"),), snapshot()))
    with pytest.raises(NotTold, match="full"):
        listener.take(Refused(10, "queue_full", "full"))


# --- Circumstances --------------------------------------------------------------------------------------------------
def test_a_circumstance_without_its_proof_is_none():
    circumstance = Circumstance("x", proof=("preemptions", "recomputed_tokens"))
    assert circumstance.unproven(snapshot(preemptions=1, recomputed_tokens=2)) == ""
    assert circumstance.unproven(snapshot(preemptions=1)) == "it was not so: no recomputed_tokens"


def test_circumstances_have_names_of_their_own_and_proofs_that_exist():
    assert CIRCUMSTANCES[0] is REFERENCE
    assert len({each.name for each in CIRCUMSTANCES}) == len(CIRCUMSTANCES)
    assert {name for each in CIRCUMSTANCES for name in each.proof} <= set(Snapshot.__struct_fields__)


@pytest.fixture
def scripted():
    """A loaded scripted model and requests whose texts are known."""
    config = EngineConfig(model="scripted://?eos=0&blocks=2048", socket_folder="", max_model_len=256, **BASE)
    harness = Harness(config, lambda stage, fraction: None)
    ids = asking.Ids(3, 255, 2)
    asked = [each for each in asking.make(48, 3, ids) if each.kind not in ("grammar", "adapted")]
    asked = [
        each._replace(submit=msgspec.structs.replace(each.submit, request=index)) for index, each in enumerate(asked)
    ]
    expected = drive(harness.build(), config, asked, at_once=1, passes=1).told
    keys = [(index, choice) for index, each in enumerate(asked) for choice in range(each.submit.n)]
    return harness, config, asked, expected, [expected[key].tokens for key in keys]


@pytest.mark.parametrize("budget", [16, 2048])
def test_every_sequence_is_preempted_three_times(scripted, budget):
    harness, config, asked, expected, answers = scripted
    changes = {"max_num_batched_tokens": budget, "max_num_seqs": min(budget, 64)}
    engine = harness.build(**changes)
    scheduler = PreemptingScheduler(engine.scheduler.config, None, list(map(len, answers)), seed=2)
    heard = drive(engine._replace(scheduler=scheduler), config, asked, at_once=0, passes=1)
    assert LEAST <= min(scheduler.counts) <= max(scheduler.counts) <= MOST
    assert heard.snapshot.preemptions == sum(scheduler.counts)
    assert first_difference(asked, expected, heard.told) == ""


@pytest.mark.parametrize("plans", [1, 2])
def test_drafts_come_true_and_do_not(scripted, plans):
    harness, config, asked, expected, answers = scripted
    prompts = [each.prompt_tokens for each in asked for _ in range(each.submit.n)]
    engine = harness.build(plans_in_flight=plans)
    drafts = Oracle(prompts, answers, seed=4)
    heard = drive(
        engine._replace(scheduler=create_scheduler(engine.scheduler.config, drafts)), config, asked, at_once=0, passes=1
    )
    assert 0 < heard.snapshot.accepted_tokens < heard.snapshot.drafted_tokens
    assert first_difference(asked, expected, heard.told) == ""


def test_a_second_pass_hits_the_cache(scripted):
    harness, config, asked, expected, _ = scripted
    once = drive(harness.build(), config, asked, at_once=0, passes=1)
    twice = drive(harness.build(), config, asked, at_once=7, passes=2)
    assert first_difference(asked, expected, twice.told) == ""
    assert twice.snapshot.prefix_hit_tokens > 2 * once.snapshot.prefix_hit_tokens


# --- The table ------------------------------------------------------------------------------------------------------
CELLS = [
    Cell("random, int8, avx2", "alone", "", "", "aa", 1.0),
    Cell("random, int8, avx2", "batched 64", "request 3: token 1 was 2 and is 3", "", "ab", 1.0),
    Cell("random, int8, portable", "alone", "", "", "aa", 1.0),
    Cell("random, float32, portable", "alone", "", "", "cc", 1.0),
]


def test_one_difference_makes_its_subject_fall_short():
    figures = list(of_cells(CELLS))
    assert [figure.held for figure in figures] == [False, True, True, True]
    assert "batched 64: request 3" in figures[0].figure
    assert figures[3].figure == "1 over 2"
    assert digests_by_precision(CELLS) == {"random, int8": ["aa", "aa"], "random, float32": ["cc"]}


def test_finished_subjects_are_kept_and_those_of_other_code_are_not(tmp_path, monkeypatch):
    path, tried = tmp_path / "progress", []

    def attempt(subject, circumstances, count, seed, tell):
        tried.append(subject)
        return [Cell(subject.name, each.name, "", "", "d", 0.1) for each in circumstances]

    monkeypatch.setattr(table, "attempt", attempt)
    cells = table.fill(short=True, seed=1, progress=path)
    assert table.fill(short=True, seed=1, progress=path) == cells
    assert len(tried) == 1
    table.fill(short=True, seed=2, progress=path)
    assert len(tried) == 2
    assert json.loads(path.read_text().splitlines()[1])[0] == cells[0].subject


def test_the_short_table_is_identical_throughout():
    cells = table.fill(short=True, seed=0)
    assert {cell.circumstance for cell in cells} == {each.name for each in CIRCUMSTANCES if each.short}
    assert {f"{cell.circumstance}: {cell.difference}" for cell in cells if cell.difference} == set()
