import pytest

from octavo_engine.worker.executable import KVGroup
from octavo_engine.worker.sizing import (
    DEFAULT_POOL_BYTES,
    PoolSize,
    StartError,
    measured_batched_tokens,
    pool_bytes,
    size_pool,
)

GIB = 1 << 30
FULL = (KVGroup(0, 1000),)


@pytest.mark.parametrize(
    ("requested", "left", "expected"),
    [(GIB, 8 * GIB, GIB), (0, 2 * GIB, GIB), (0, 100 * GIB, DEFAULT_POOL_BYTES)],
)
def test_the_pool_takes_the_flag_or_a_bounded_share_of_what_is_left(requested, left, expected):
    assert pool_bytes(requested, left) == expected


def test_a_pool_larger_than_the_memory_left_stops_the_start():
    with pytest.raises(StartError, match=r"8\.00Gi does not fit: 4\.00Gi are left"):
        pool_bytes(8 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("total", "groups", "max_model_len", "expected"),
    [
        (10_000, FULL, 0, PoolSize((10,), 128)),  # the model's own length fits
        (3_999, FULL, 0, PoolSize((3,), 48)),  # auto takes what fits
        (10_000, FULL, 100, PoolSize((10,), 100)),
        (10_000, FULL, 128, PoolSize((10,), 128)),
        (9_000, (KVGroup(0, 1000), KVGroup(512, 500)), 0, PoolSize((6, 6), 96)),
    ],
)
def test_pool_size(total, groups, max_model_len, expected):
    assert size_pool(total, groups, 16, model_max_len=128, max_model_len=max_model_len) == expected


@pytest.mark.parametrize(
    ("total", "max_model_len", "sentence"),
    [
        (3_999, 49, "--max-model-len 49: it holds 48 tokens. Use --max-model-len 48 or less"),
        (10_000, 129, "more than the model was made for: use 128 or less"),
        (999, 0, "at least 1000 bytes"),
    ],
)
def test_what_cannot_work_stops_the_start_and_names_the_remedy(total, max_model_len, sentence):
    with pytest.raises(StartError, match=sentence):
        size_pool(total, FULL, 16, model_max_len=128, max_model_len=max_model_len)


@pytest.mark.parametrize(
    ("fixed", "per_token", "largest", "expected"),
    [
        (0.0, 0.010, 4096, 64),  # slow: never under 64
        (0.020, 1 / 8000, 4096, 1040),
        (0.0, 0.001, 4096, 144),  # 150, whole blocks
        (0.0, 0.0, 4096, 2048),  # fast: never over 2048
        (0.0, 0.0, 300, 288),
        (0.0, 0.0, 10, 64),
    ],
)
def test_batched_tokens_are_what_150_milliseconds_hold(fixed, per_token, largest, expected):
    assert measured_batched_tokens(lambda tokens: fixed + per_token * tokens, largest) == expected
