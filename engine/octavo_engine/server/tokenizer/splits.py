"""How byte-level vocabularies cut text before merging, by GGUF's `tokenizer.ggml.pre`.

A vocabulary works only with the cut its merges were learned with, so an unknown name is refused. The patterns are those
of the models' own `tokenizer.json` files.
"""

from __future__ import annotations

from typing import Any, Final

from tokenizers import Regex, pre_tokenizers

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_PATTERNS: Final[dict[str, str]] = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_GPT2: Final = frozenset({"default", "gpt-2", "smollm"})
"""GPT-2's own pattern. SmolLM's `tokenizer.json` also isolates digits; `transformers` builds its GGUF without that, and
ids equal to `transformers`' are the contract. They differ only for two or more blanks right before a digit."""


def pre_tokenizer(name: str) -> Any:
    """Return the pre-tokenizer called `name`. Raises KeyError for an unknown one."""
    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERNS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def known() -> list[str]:
    """Return the names that can be served, sorted."""
    return sorted({*_PATTERNS, *_GPT2})
