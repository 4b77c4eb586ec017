"""SentencePiece-style BPE from a GGUF (model `llama`): blanks are `▁`, unknown characters are bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from octavo_engine.server.tokenizer.control import ControlTokens

BLANK: Final = "▁"
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build(metadata: Mapping[str, Any], tokens: list[str], control: ControlTokens) -> tuple[Any, list[bytes]]:
    """Return the tokenizer (no added tokens yet) and the bytes of each token."""
    vocabulary = {token: place for place, token in enumerate(tokens) if control.ids.get(token) != place}
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    merges = list(_merges(vocabulary, scores))
    vocabulary.update((control.spelling(text), place) for text, place in control.ids.items())
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    unknown_text = tokens[unknown] if unknown is not None and 0 <= unknown < len(tokens) else None
    if unknown_text in control.ids:
        unknown_text = control.spelling(unknown_text)
    tokenizer = Tokenizer(
        BPE(vocab=vocabulary, merges=merges, unk_token=unknown_text, fuse_unk=True, byte_fallback=True)
    )
    scheme = "first" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=scheme, split=False)
    return tokenizer, [token_bytes(token) for token in tokens]


def token_bytes(token: str) -> bytes:
    """Return the bytes a token stands for."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(BLANK, " ").encode("utf-8")


def _merges(vocabulary: Mapping[str, int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Yield the merges a vocabulary with scores implies: the best result first, longer left parts before shorter."""
    found = []
    for token, place in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                rank = (-scores[place], -len(left), -len(right), place, vocabulary[left], vocabulary[right])
                found.append((rank, left, right))
    found.sort()
    for _, left, right in found:
        yield left, right
