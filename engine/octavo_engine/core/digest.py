"""Chained block digests: the name under which a block's KV can be found again.

A digest covers every token from the sequence's first to the block's last, and, through the root, everything else that
decides the block's bytes. 128 bits: two different contexts meeting by chance is out of the question, so the tokens
themselves need not be compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 16


class CacheIdentity(NamedTuple):
    """What, besides the tokens, decides the bytes of a KV block.

    `salt` keeps tenants apart; `adapter_digest` names an adapter by its weights, never by its name or load order.
    """

    layout_version: int
    model_digest: str
    quantization: str
    kv_dtype: str
    adapter_digest: str
    salt: str


def root_digest(identity: CacheIdentity) -> bytes:
    """Return the root of a chain. Fields carry type and length: no two identities run together."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"octavo kv root")
    for field in identity:
        if isinstance(field, int):
            digest.update(b"i" + struct.pack("<q", field))
        else:
            data = field.encode()
            digest.update(b"s" + struct.pack("<q", len(data)) + data)
    return digest.digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the digest of the full block holding `tokens`, whose predecessor's digest is `parent`."""
    return blake2b(parent + struct.pack(f"<{len(tokens)}i", *tokens), digest_size=DIGEST_BYTES).digest()


def extend(digests: list[bytes], root: bytes, tokens: Sequence[int], num_blocks: int, block_size: int) -> None:
    """Append to `digests` until it names the first `num_blocks` full blocks of `tokens`."""
    for block in range(len(digests), num_blocks):
        parent = digests[-1] if digests else root
        digests.append(chain(parent, tokens[block * block_size : (block + 1) * block_size]))
