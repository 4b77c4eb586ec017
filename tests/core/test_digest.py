"""Digests: everything that decides a block's bytes decides its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.digest import DIGEST_BYTES, CacheIdentity, chain, extend, root_digest

PLAIN = CacheIdentity(1, "model", "none", "float32", "", "")


@pytest.mark.parametrize(
    "change",
    [
        {"layout_version": 2},
        {"model_digest": "other"},
        {"quantization": "int8"},
        {"kv_dtype": "int8"},
        {"adapter_digest": "a"},
        {"salt": "a"},
        {"adapter_digest": "", "salt": "1"},
        {"model_digest": "mode", "quantization": "lnone"},
    ],
)
def test_every_part_of_the_identity_makes_another_root(change):
    assert root_digest(PLAIN._replace(**change)) != root_digest(PLAIN)


def test_fields_cannot_run_together():
    """The same characters, cut differently, are different identities."""
    roots = {root_digest(PLAIN._replace(adapter_digest="ab"[:cut], salt="ab"[cut:])) for cut in range(3)}
    assert len(roots) == 3


def test_a_digest_has_128_bits_and_is_the_same_in_every_process():
    assert DIGEST_BYTES * 8 >= 128
    assert chain(root_digest(PLAIN), [1, 2, 3]).hex() == chain(root_digest(PLAIN), (1, 2, 3)).hex()
    assert len(chain(root_digest(PLAIN), [1])) == DIGEST_BYTES


@given(st.lists(st.integers(0, 3), min_size=4, max_size=24), st.integers(0, 23))
def test_a_changed_token_renames_its_block_and_all_after_it(tokens, place):
    place %= len(tokens)
    changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    size, root = 4, root_digest(PLAIN)
    first: list[bytes] = []
    second: list[bytes] = []
    extend(first, root, tokens, len(tokens) // size, size)
    extend(second, root, changed, len(tokens) // size, size)
    same = place // size
    assert first[:same] == second[:same]
    assert all(a != b for a, b in zip(first[same:], second[same:], strict=True))


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 10))
def test_extending_in_two_goes_is_extending_in_one(tokens, first):
    size, root = 4, root_digest(PLAIN)
    blocks = len(tokens) // size
    whole: list[bytes] = []
    parts: list[bytes] = []
    extend(whole, root, tokens, blocks, size)
    extend(parts, root, tokens, min(first, blocks), size)
    extend(parts, root, tokens, blocks, size)
    assert whole == parts
    assert len(set(whole)) == blocks
