"""Ranks in processes of their own, over gloo: every one is told the same."""

import json
import subprocess
import sys

import pytest
import torch

from octavo_engine.worker.gpu.communicator import ALONE


@pytest.fixture(scope="module", params=[2, 4])
def told(request, tmp_path_factory):
    size, folder = request.param, tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.worker.gpu.communicating"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(folder)], stdout=subprocess.PIPE) for rank in range(size)
    ]
    try:
        answers = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(answer) for answer in answers]


def test_a_sum_is_of_every_rank_in_each_type(told):
    total = 2.0 ** len(told) - 1
    assert all(each["float32"] == each["bfloat16"] == [total] for each in told)


def test_logits_are_gathered_side_by_side_however_the_vocabulary_divides(told):
    assert all(each[f"columns of {vocab_size}"] for each in told for vocab_size in (35, 5, 1))
    refused = [each.get("refused", "") for each in told]
    assert all(f"Rank {rank} of {len(told)} has" in refused[rank] for rank in range(len(told)))


def test_sampled_tokens_are_rank_0s(told):
    assert all(each["tokens"] == [7, 8] for each in told)


def test_the_least_of_all_is_known_to_all(told):
    assert all(each["least"] == 11 - len(told) for each in told)


def test_calls_are_counted_alike(told):
    assert len({each["calls"] - each["before"] for each in told}) == 1
    assert told[0]["calls"] - told[0]["before"] == 6


def test_sums_in_the_order_of_the_ranks_depend_on_no_other_row(told):
    assert all(each["rows apart"] for each in told)
    # Two parts have one sum, in whatever order.
    assert all(each["in order"] for each in told)


def test_one_rank_alone_changes_nothing():
    x, out = torch.ones(2, 3), torch.zeros(2, 3)
    ALONE.all_reduce(x)
    ALONE.broadcast(x)
    ALONE.all_gather_columns(x, out)
    ALONE.barrier()
    ALONE.close()
    assert (x == 1).all()
    assert (out == 1).all()
    assert (ALONE.rank, ALONE.size, ALONE.calls, ALONE.least(3)) == (0, 1, 0, 3)
