import pytest

from octavo_engine.core.config import CacheGroup, SchedulerConfig
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.executable import KVGroup, Needs
from octavo_engine.worker.sizing import (
    DEFAULT_POOL_BYTES,
    StartError,
    check_before_loading,
    choose_blocks,
    host_places,
    measured_batched_tokens,
    model_len,
    pool_blocks,
    pool_bytes,
)

GIB = 1 << 30
FULL = (KVGroup(0, 1000),)


@pytest.mark.parametrize(
    ("requested", "left", "expected"),
    [(GIB, 8 * GIB, GIB), (0, 2 * GIB, GIB), (0, 100 * GIB, DEFAULT_POOL_BYTES)],
)
def test_the_pool_takes_the_flag_or_a_bounded_share_of_what_is_left(requested, left, expected):
    assert pool_bytes(requested, left, bytes_per_token=100_000) == expected


@pytest.mark.parametrize(("bytes_per_token", "expected"), [(16384, GIB), (16, 64 << 20)])
def test_a_small_model_takes_no_more_than_many_requests_of_its_own_need(bytes_per_token, expected):
    assert pool_bytes(0, 100 * GIB, bytes_per_token) == expected


def test_a_pool_larger_than_the_memory_left_stops_the_start():
    with pytest.raises(StartError, match=r"8\.00Gi does not fit: 4\.00Gi are left"):
        pool_bytes(8 * GIB, 4 * GIB, 1000)


def test_groups_share_the_pool_block_by_block():
    assert pool_blocks(9_999, FULL) == (9,)
    assert pool_blocks(9_000, (KVGroup(0, 1000), KVGroup(512, 500))) == (6, 6)


def test_the_host_tier_has_as_many_places_for_every_group_or_none():
    assert host_places(0, 0, FULL) == (0,)
    assert host_places(9_000, 9_000, (KVGroup(0, 1000), KVGroup(512, 500))) == (6, 6)


@pytest.mark.parametrize(("asked", "sentence"), [(10_001, "Ask for less"), (999, "at least 1000 bytes")])
def test_a_host_tier_that_cannot_be_stops_the_start(asked, sentence):
    with pytest.raises(StartError, match=f"--kv-offload-memory.*{sentence}"):
        host_places(asked, 10_000, FULL)


def test_a_pool_smaller_than_a_block_stops_the_start():
    with pytest.raises(StartError, match="at least 1000 bytes"):
        pool_blocks(999, FULL)


def cache_of(blocks):
    return SchedulerConfig(groups=(CacheGroup(blocks),), max_model_len=0)


@pytest.mark.parametrize(
    ("blocks", "requested", "expected"),
    [(10, 0, 128), (3, 0, 48), (10, 100, 100), (10, 128, 128)],  # the model was made for 128
)
def test_auto_takes_the_largest_length_that_model_and_cache_allow(blocks, requested, expected):
    assert model_len(requested, 128, cache_of(blocks)) == expected


@pytest.mark.parametrize(
    ("blocks", "requested", "sentence"),
    [
        (3, 49, "--max-model-len 49: it holds 48 tokens. Use --max-model-len 48 or less"),
        (10, 129, "more than the model was made for: use 128 or less"),
    ],
)
def test_a_length_that_cannot_be_served_stops_the_start_and_names_one_that_can(blocks, requested, sentence):
    with pytest.raises(StartError, match=sentence):
        model_len(requested, 128, cache_of(blocks))


@pytest.mark.parametrize(
    ("fixed", "per_token", "expected"),
    [
        (0.0, 0.010, 64),  # slow: never under 64
        (0.020, 1 / 8000, 1040),
        (0.0, 0.001, 144),  # 150, whole blocks
        (0.0, 0.0, 2048),  # fast: never over 2048
    ],
)
def test_batched_tokens_are_what_150_milliseconds_hold(fixed, per_token, expected):
    assert measured_batched_tokens(lambda tokens: fixed + per_token * tokens) == expected


NEEDS = Needs(
    weight_bytes=GIB // 2, table_bytes=GIB // 2, groups=(KVGroup(0, 1000), KVGroup(32, 600)), max_position=256
)
"""A block of 16 tokens takes 1,600 bytes."""


def engine(**options):
    return EngineConfig(model="", socket_folder="", **options)


@pytest.mark.parametrize(
    ("options", "left", "sentence"),
    [
        ({}, GIB - 1, r"take 0\.50Gi, and .* of 256 tokens 0\.50Gi; 1\.00Gi of memory are left here: raise"),
        ({"kv_cache_memory": GIB + 1}, 2 * GIB, r"--kv-cache-memory 1\.00Gi does not fit: 1\.00Gi are left here"),
        ({"kv_cache_memory": 1599}, 2 * GIB, "raise --kv-cache-memory to at least 1600 bytes"),
        ({"max_model_len": 257}, 2 * GIB, "more than the model was made for: use 256 or less"),
        ({"max_model_len": 200, "kv_cache_memory": 3 * 1600}, 2 * GIB, "it holds 48 tokens. Use --max-model-len 48"),
        ({"max_model_len": 256}, GIB + 4 * 1600, "it holds 32 tokens. Use --max-model-len 32 or less"),
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, 2 * GIB, "--max-num-batched-tokens 4 is less than"),
    ],
)
def test_what_the_header_shows_cannot_be_served_is_refused_before_loading(options, left, sentence):
    with pytest.raises(StartError, match=sentence):
        check_before_loading(NEEDS, engine(**options), left)


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_cache_memory": 16 * 1600, "max_model_len": 256}, {"max_num_seqs": 64}, {"max_num_batched_tokens": 1}],
)
def test_what_may_be_served_is_loaded(options):
    check_before_loading(NEEDS, engine(**options), 2 * GIB)


def test_a_window_is_taken_with_the_fewest_tokens_of_a_step():
    """How many a step has is measured behind the weights; what could fit then is not refused before."""
    windows = NEEDS._replace(groups=(KVGroup(32, 1600),))
    check_before_loading(windows, engine(kv_cache_memory=7 * 1600, max_model_len=256), 2 * GIB)
    with pytest.raises(StartError, match="cannot hold one sequence"):
        check_before_loading(windows, engine(kv_cache_memory=6 * 1600, max_model_len=256), 2 * GIB)


def test_blocks_are_chosen_of_what_is_asked_for_or_left():
    assert choose_blocks(3300, GIB, NEEDS.groups, 16) == (2, 2)
    assert choose_blocks(0, 3200, NEEDS.groups, 16) == (1, 1)
