"""A GGUF's own vocabulary as a tokenizer: byte-level BPE (`gpt2`) and SentencePiece-style BPE (`llama`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from octavo_engine.model.gguf_metadata import GGUFError, read_gguf_metadata
from octavo_engine.server.tokenizer import bytelevel, sentencepiece, splits
from octavo_engine.server.tokenizer.control import ControlTokens
from octavo_engine.server.tokenizer.vocabulary import HuggingFaceBackend, TokenizerError, Vocabulary, is_structural

_PREFIX: Final = "tokenizer.ggml."
_NAMES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load(path: Path) -> Vocabulary:
    """Return the vocabulary of the GGUF file at `path`. Raises `TokenizerError`, OSError."""
    try:
        metadata = read_gguf_metadata(path)
    except GGUFError as error:
        raise TokenizerError(str(error)) from error
    return build(metadata)


def build(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary that a GGUF's metadata describes. Raises `TokenizerError`."""
    tokens: list[str] = metadata.get(_PREFIX + "tokens") or []
    if not tokens:
        raise TokenizerError("The GGUF holds no vocabulary (tokenizer.ggml.tokens): convert the model again.")
    types = _types(metadata, len(tokens))
    template: str | None = metadata.get("tokenizer.chat_template")
    tool_template: str | None = metadata.get("tokenizer.chat_template.tool_use")
    special = _special_ids(metadata, types)
    control = ControlTokens(
        {
            token: place
            for place, token in enumerate(tokens)
            if place in special
            or (types[place] == TokenType.USER_DEFINED and is_structural(token, template, tool_template))
        }
    )
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        tokenizer, data = _byte_level(metadata, tokens, types, control)
    elif model == "llama":
        tokenizer, data = sentencepiece.build(metadata, tokens, control)
    else:
        raise TokenizerError(f"The GGUF's tokenizer is {model!r}; 'gpt2' and 'llama' can be served.")
    _add_tokens(tokenizer, tokens, types, control)
    for text, token in control.ids.items():
        data[token] = text.encode("utf-8")
    return Vocabulary(
        backend=HuggingFaceBackend(tokenizer),
        token_bytes=data,
        special=special,
        control=control,
        bos_token_id=_token_id(metadata, "bos_token_id", len(tokens)),
        eos_token_ids=_end_ids(metadata, len(tokens)),
        prefix=_wrapping(metadata, "bos", model == "llama", len(tokens)),
        suffix=_wrapping(metadata, "eos", False, len(tokens)),
        names={
            name: tokens[place]
            for name, key in _NAMES.items()
            if (place := _token_id(metadata, key, len(tokens))) is not None
        },
        chat_template=template,
        tool_template=tool_template,
        strips_leading_space=model == "llama" and bool(metadata.get(_PREFIX + "add_space_prefix", True)),
    )


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], control: ControlTokens
) -> tuple[Any, list[bytes]]:
    name = metadata.get(_PREFIX + "pre", "default")
    try:
        pre_tokenizer = splits.pre_tokenizer(name)
    except KeyError:
        raise TokenizerError(
            f"The GGUF's pre-tokenizer is {name!r}; these can be served: {', '.join(splits.known())}."
        ) from None
    added = (TokenType.CONTROL, TokenType.USER_DEFINED)
    spelled = [
        token if types[place] in added or bytelevel.is_spelled(token) else bytelevel.spell(token.encode("utf-8"))
        for place, token in enumerate(tokens)
    ]
    vocabulary = reachable_vocabulary(spelled, control)
    merges = (tuple(merge.split(" ", 1)) for merge in metadata.get(_PREFIX + "merges") or ())
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=reachable_merges(merges, vocabulary)))
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer, bytelevel.token_bytes(spelled)


def reachable_vocabulary(tokens: list[str], control: ControlTokens) -> dict[str, int]:
    """Return token to id, with each control token under its spelling instead of its text."""
    vocabulary = {token: place for place, token in enumerate(tokens) if control.ids.get(token) != place}
    vocabulary.update((control.spelling(text), place) for text, place in control.ids.items())
    return vocabulary


def reachable_merges(merges: Any, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges whose parts and result are ordinary tokens: none may put a control token together."""
    return [
        (left, right)
        for left, right in merges
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]


def _add_tokens(tokenizer: Any, tokens: list[str], types: list[int], control: ControlTokens) -> None:
    spellings = [control.spelling(text) for text in control.ids]
    tokenizer.add_special_tokens([AddedToken(spelling, normalized=False) for spelling in spellings])
    plain = [
        AddedToken(token, normalized=False, special=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == TokenType.USER_DEFINED and token and token not in control.ids
    ]
    if plain:
        tokenizer.add_tokens(plain)


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    types = metadata.get(_PREFIX + "token_type") or [int(TokenType.NORMAL)] * count
    if len(types) != count:
        raise TokenizerError(f"The GGUF has {count} tokens but {len(types)} token types: convert the model again.")
    return list(types)


def _special_ids(metadata: Mapping[str, Any], types: list[int]) -> frozenset[int]:
    """Return the ids that are no text: control and unknown tokens, and those that begin and end one, however typed."""
    kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
    begins = _token_id(metadata, "bos_token_id", len(types))
    named = {*_end_ids(metadata, len(types)), *(() if begins is None else (begins,))}
    return frozenset(place for place, kind in enumerate(types) if kind in kinds or place in named)


def _token_id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    place = metadata.get(_PREFIX + key)
    return int(place) if place is not None and 0 <= place < count else None


def _end_ids(metadata: Mapping[str, Any], count: int) -> tuple[int, ...]:
    ends = (_token_id(metadata, key, count) for key in _ENDS)
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def _wrapping(metadata: Mapping[str, Any], name: str, default: bool, count: int) -> tuple[int, ...]:
    place = _token_id(metadata, f"{name}_token_id", count)
    wanted = metadata.get(f"{_PREFIX}add_{name}_token", default)
    return (place,) if wanted and place is not None else ()
