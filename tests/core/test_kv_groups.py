"""KV groups: one table per group, hits every group can serve, windows that free what they no longer see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core import kv
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.config import CacheGroup
from octavo_engine.core.kv import NO_BLOCK, find_hit, first_visible
from tests.core.drive import Drive

SIZE = 4


def pool_with(blocks):
    """A pool in which the digests of these block indices are cached, each in the block of its number."""
    pool = BlockPool(16)
    pool.take(16)
    for block in blocks:
        pool.publish(block, b"%d" % block)
    return pool


def hit(cached, windows, limit=8):
    groups = [CacheGroup(16, window) for window in windows]
    finds = [pool_with(blocks).find for blocks in cached]
    return find_hit(finds, groups, [b"%d" % n for n in range(limit)], limit, SIZE)


@pytest.mark.parametrize(
    ("cached", "windows", "blocks"),
    [
        ([[]], [0], 0),
        ([[0, 1, 2]], [0], 3),
        ([[0, 2, 3]], [0], 1),
        ([range(8)], [0], 8),
        # A window of one block beyond the end needs that block only.
        ([[2, 3]], [4], 4),
        ([[3]], [4], 4),
        ([[3]], [6], 0),
        ([[2, 3]], [6], 4),
        ([[0, 1, 3]], [6], 2),
        ([[0, 2]], [4], 3),
        # Both kinds: full attention sets the end, the window must see its last blocks.
        ([range(5), [3, 4]], [0, 8], 5),
        ([range(5), [2, 3]], [0, 8], 4),
        ([range(5), [3, 4, 5, 6]], [0, 8], 5),
        ([range(5), [0, 1]], [0, 8], 2),
        ([range(5), []], [0, 8], 0),
        ([[0, 1, 3], range(8)], [0, 8], 2),
        # Two windows that must agree.
        ([range(6), [4, 5, 2], [2, 3]], [0, 8, 4], 0),
        ([range(6), [1, 2, 4, 5], [2, 3]], [0, 8, 4], 3),
    ],
)
def test_how_far_a_prefix_is_a_hit(cached, windows, blocks):
    found = hit(cached, windows)
    assert found.num_tokens == blocks * SIZE
    assert all(len(table) == blocks for table in found.blocks)


def test_a_window_hit_holds_only_what_the_window_sees():
    found = hit([range(8), range(8)], [0, 8])
    assert found.blocks == (tuple(range(8)), (*[NO_BLOCK] * 6, 6, 7))


@given(
    st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 2, 4, 5, 9, 17]), min_size=3, max_size=3),
)
def test_the_hit_is_the_longest_that_every_group_can_serve(cached, windows):
    windows = windows[: len(cached)]

    def serves(count):
        return all(
            set(range(min(count, first_visible(window, count * SIZE, SIZE)), count)) <= blocks
            for blocks, window in zip(cached, windows, strict=True)
        )

    assert hit(cached, windows).num_tokens == SIZE * max(count for count in range(9) if serves(count))


@pytest.mark.parametrize(
    ("window", "position", "expected"), [(0, 100, 0), (4, 0, 0), (4, 6, 0), (4, 7, 1), (4, 10, 1), (4, 11, 2)]
)
def test_which_block_a_window_sees_first(window, position, expected):
    """Position p attends to p - window + 1 and later ones."""
    assert first_visible(window, position, SIZE) == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_behind_the_window_are_freed_as_the_sequence_goes_on(depth):
    drive = Drive(windows=(0, 8), max_plans_in_flight=depth)
    drive.submit(range(20), 30)
    full, windowed = drive.scheduler.kv.pools
    while drive.scheduler.has_work:
        drive.step()
        if drive.scheduler.running:
            assert windowed.num_active <= 8 // SIZE + 1
    assert full.num_blocks == full.num_free
    drive.scheduler.assert_idle()


def test_a_shared_window_is_read_from_the_cache_and_only_its_blocks_are_held():
    drive = Drive(windows=(0, 8))
    prompt = list(range(33))
    drive.submit(prompt, 1)
    drive.finish()
    second = drive.submit(prompt, 2)
    plan = drive.step()
    (admission,) = plan.admitted
    assert drive.rows() == {second: 1}
    assert NO_BLOCK not in admission.blocks[0]
    assert [block == NO_BLOCK for block in admission.blocks[1]] == [True] * 6 + [False] * 3
    drive.finish()


def test_a_long_prompt_passes_through_a_window_group_smaller_than_itself():
    """Chunk by chunk, blocks behind the window are freed: only the window and a chunk must fit."""
    drive = Drive(max_model_len=64, groups=(CacheGroup(16), CacheGroup(6, 8)), max_num_batched_tokens=8)
    sequence = drive.submit(range(60), 4)
    drive.finish()
    assert len(drive.text(sequence)) == 4


def test_publishing_names_each_full_block_once():
    drive = Drive()
    drive.submit(range(9), 8)
    drive.step()
    (sequence,) = drive.scheduler.running
    assert sequence.num_published == 2
    assert kv.publish(drive.scheduler.kv.pools, sequence, 9, SIZE) == []
    for _ in range(3):
        drive.step()
    assert sequence.num_published == 3
