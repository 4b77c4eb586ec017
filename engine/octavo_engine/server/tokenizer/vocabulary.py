"""What every kind of model file gives about its text side."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo_engine.server.tokenizer.control import ControlTokens


class TokenizerError(ValueError):
    """The model's files give no tokenizer that this engine can build. The message says what to do."""


class Backend(Protocol):
    """Turns text into ids; control tokens are known to it by their spellings only."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, none added."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of one model.

    token_bytes: bytes of each id, control tokens by their text. special: ids that are never part of an answer's text.
    control: the tokens that no user's text may become. prefix, suffix: ids the model wants around a plain prompt (its
    BOS and EOS rules). tool_template: a template of its own for chats with tools, where the model has one. names:
    `bos_token`, `eos_token` … for the chat template. bytes_per_token_factor: by how much normalisation can shrink text
    before it is cut into tokens. strips_leading_space: a text's first blank is the tokenizer's own (SentencePiece).
    """

    backend: Backend
    token_bytes: list[bytes]
    special: frozenset[int]
    control: ControlTokens
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    tool_template: str | None = None
    bytes_per_token_factor: int = 1
    strips_leading_space: bool = False


class HuggingFaceBackend:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        # One text at a time gains nothing from a thread per core, which the library would start at the first text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, none added. Raises UnicodeEncodeError for a lone surrogate."""
        # The fast variant leaves character offsets out, which nobody here reads.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def is_structural(token: str, *templates: str | None) -> bool:
    """Return whether an added token that is not special is written by the chat template (`<think>`, `<tool_call>`).

    Such tokens are control tokens to us: a user must not be able to write them. Runs of blanks are ordinary text.
    """
    return not token.isspace() and any(token in template for template in templates if template is not None)
