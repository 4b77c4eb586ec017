"""A step's flat arrays: the short way for decoding gives what the general one gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.step import Admission, Row
from octavo_engine.sampling.settings import prepare
from octavo_engine.worker.assemble import assemble, assemble_decode
from octavo_engine.worker.batch import PersistentBatch

SIZE, LONGEST, SLOTS = 4, 40, 6


def batch_of(lengths, num_groups):
    """Slot s holds sequence 100 + s of `lengths[s]` tokens; every block id is used once per group."""
    batch = PersistentBatch(
        max_num_seqs=SLOTS, max_model_len=LONGEST, block_size=SIZE, num_groups=num_groups, vocab_size=1000
    )
    random = np.random.default_rng(sum(lengths))
    for slot, length in enumerate(lengths):
        tables = [random.permutation(SLOTS * 12)[: -(-length // SIZE)] + 100 * slot for _ in range(num_groups)]
        tokens = tuple(random.integers(0, 1000, length).tolist())
        admission = Admission(slot, 100 + slot, tokens, 1, tuple(tuple(table.tolist()) for table in tables))
        batch.admit(admission, prepare(1000, seed=1))
    return batch


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=SLOTS),
    order=st.randoms(use_true_random=False),
    num_groups=st.integers(1, 2),
    max_position=st.sampled_from([LONGEST, 10]),
)
def test_decoding_rows_are_assembled_the_same_by_the_short_way(lengths, order, num_groups, max_position):
    batch = batch_of(lengths, num_groups)
    slots = list(range(len(lengths)))
    order.shuffle(slots)
    rows = [Row(slot, 100 + slot, lengths[slot] - 1, 1, True, adapter=slot - 1) for slot in slots]
    starts = np.array([row.start for row in rows])
    short = assemble_decode(batch, np.array(slots), starts, [row.adapter for row in rows], max_position)
    for ours, general in zip(short, assemble(batch, rows, max_position), strict=True):
        pairs = zip(ours, general, strict=True) if isinstance(ours, tuple) else [(ours, general)]
        for left, right in pairs:
            assert left.dtype == right.dtype
            assert left.flags.c_contiguous
            np.testing.assert_array_equal(left, right)


def test_a_token_without_a_block_is_an_error_either_way():
    batch = batch_of([5], 1)
    batch.tables[0][0, 1] = -1
    with pytest.raises(RuntimeError, match="no block"):
        assemble(batch, [Row(0, 100, 4, 1, True)], LONGEST)
    with pytest.raises(RuntimeError, match="no block"):
        assemble_decode(batch, np.array([0]), np.array([4]), [-1], LONGEST)


def test_one_token_each_is_appended_as_tokens_are_appended_one_by_one():
    one, other = batch_of([5, 9, 1], 1), batch_of([5, 9, 1], 1)
    one.append_one_each(np.array([2, 0]), [7, 8])
    other.append_tokens(2, [7])
    other.append_tokens(0, [8])
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)
