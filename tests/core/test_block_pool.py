"""The block pool: counts, LRU order, publishing; a refused call leaves no trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.block_pool import BlockPool


def digest(n: int) -> bytes:
    return n.to_bytes(16, "big")


def drained(pool: BlockPool) -> list[int]:
    """The order in which free blocks would be taken."""
    order = pool.take(pool.num_free)
    pool.check()
    return order


def test_fresh_blocks_are_taken_in_order():
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    assert (pool.num_free, pool.num_active, pool.num_cached) == (1, 3, 0)


def test_the_tail_is_evicted_before_the_head():
    pool = BlockPool(4)
    table = pool.take(4)
    for block in table:
        pool.publish(block, digest(block))
    pool.free(table)
    assert pool.num_cached == 4
    assert drained(pool) == [3, 2, 1, 0]


def test_blocks_nobody_can_find_are_reused_before_cached_ones():
    pool = BlockPool(4)
    table = pool.take(4)
    pool.publish(table[0], digest(0))
    pool.publish(table[1], digest(1))
    pool.free(table)
    assert drained(pool) == [2, 3, 1, 0]


def test_the_least_recently_freed_is_evicted_first():
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block in blocks:
        pool.publish(block, digest(block))
    for block in (1, 0, 2):
        pool.free([block])
    pool.touch([1])
    pool.free([1])
    assert drained(pool) == [0, 2, 1]


def test_a_taken_block_is_no_longer_found():
    pool = BlockPool(1)
    pool.publish(*pool.take(1), digest(7))
    pool.free([0])
    assert pool.find(digest(7)) == 0
    pool.take(1)
    assert pool.find(digest(7)) == -1


def test_a_touched_block_is_not_evicted():
    pool = BlockPool(2)
    pool.publish(pool.take(1)[0], digest(0))
    pool.free([0])
    pool.touch([0])
    assert pool.references(0) == 1
    assert pool.take(1) == [1]
    assert not pool.can_take(1)


def test_a_shared_block_is_free_only_after_its_last_holder():
    pool = BlockPool(2)
    block = pool.take(1)
    pool.touch(block)
    pool.free(block)
    assert pool.num_active == 1
    pool.free(block)
    assert pool.num_active == 0


def test_of_two_blocks_with_one_digest_the_first_keeps_it():
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.publish(first, digest(1))
    pool.publish(second, digest(1))
    assert pool.find(digest(1)) == first
    pool.free([first, second])
    assert (pool.num_cached, pool.num_free) == (1, 2)
    assert drained(pool) == [second, first]


def test_hits_that_are_free_count_against_what_can_be_taken():
    pool = BlockPool(3)
    table = pool.take(2)
    pool.publish(table[0], digest(0))
    pool.free(table)
    assert pool.can_take(2, touching=[table[0]])
    assert not pool.can_take(3, touching=[table[0]])
    pool.touch([table[0]])
    assert pool.can_take(2, touching=[table[0]])


@pytest.mark.parametrize(
    "refused",
    [
        lambda pool: pool.take(3),
        lambda pool: pool.free([0, 2]),
        lambda pool: pool.claim([2, 0]),
        lambda pool: pool.claim([2, 2]),
        lambda pool: pool.publish(2, digest(5)),
        lambda pool: pool.publish(0, digest(5)),
    ],
    ids=["take too many", "free a free one", "claim a held one", "claim twice", "publish a free one", "publish other"],
)
def test_a_refused_call_leaves_no_trace(refused):
    pool = BlockPool(4)
    pool.take(2)
    pool.publish(0, digest(0))
    before = (pool._references[:], pool._next[:], pool._previous[:], pool._digests[:], dict(pool._by_digest))
    with pytest.raises(ValueError, match=r"\w+"):
        refused(pool)
    assert before == (pool._references, pool._next, pool._previous, pool._digests, pool._by_digest)
    pool.check()


def test_a_pool_of_nothing_is_refused():
    with pytest.raises(ValueError, match="more memory"):
        BlockPool(0)


@given(
    st.lists(st.tuples(st.sampled_from(["take", "free", "touch", "publish", "find"]), st.integers(0, 40)), max_size=200)
)
def test_the_pool_agrees_with_a_plain_model(operations):
    """Model: counts per block, and a digest per block that is found as long as it was not taken again."""
    pool, held, published = BlockPool(6), [], {}
    for operation, number in operations:
        if operation == "take" and pool.can_take(number % 4):
            blocks = pool.take(number % 4)
            held += blocks
            published = {d: b for d, b in published.items() if b not in blocks}
        elif operation == "free" and held:
            pool.free([held.pop(number % len(held))])
        elif operation == "touch" and published:
            block = sorted(published.values())[number % len(published)]
            pool.touch([block])
            held.append(block)
        elif operation == "publish" and held:
            block = held[number % len(held)]
            if block not in published.values():
                pool.publish(block, digest(number))
                published.setdefault(digest(number), block)
        elif operation == "find":
            assert pool.find(digest(number)) == published.get(digest(number), -1)
        pool.check()
        assert all(pool.references(block) == held.count(block) for block in range(6))
        assert pool.num_cached == sum(1 for block in published.values() if block not in held)
