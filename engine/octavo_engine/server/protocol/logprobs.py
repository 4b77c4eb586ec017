"""How log-probabilities look: completions' four parallel arrays, chat's list of objects, vLLM's prompt_logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo_engine.ipc.scores import TokenScore


class Scored(NamedTuple):
    """A token of an answer: the characters before it, and what the model thought of it (None: the prompt's first)."""

    token: int
    offset: int
    score: TokenScore | None


def shown(data: bytes) -> str:
    """Return a token's text; of bytes that are no whole characters their names, as OpenAI does."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


def of_completion(scored: Sequence[Scored], table: Sequence[bytes], alternatives: int) -> dict[str, Any]:
    """Return the arrays of a completion's choice. `table`: bytes of each token id."""
    return {
        "tokens": [shown(table[item.token]) for item in scored],
        "token_logprobs": [None if item.score is None else item.score.logprob for item in scored],
        "top_logprobs": [_named(item, table, alternatives) for item in scored],
        "text_offset": [item.offset for item in scored],
    }


def _named(item: Scored, table: Sequence[bytes], alternatives: int) -> dict[str, float] | None:
    """Return the alternatives by name; the token itself is always among them."""
    if item.score is None:
        return None
    named: dict[str, float] = {}
    for token, logprob in item.score.top[:alternatives]:
        named.setdefault(shown(table[token]), logprob)
    named.setdefault(shown(table[item.token]), item.score.logprob)
    return named


def of_chat(scored: Sequence[Scored], table: Sequence[bytes], alternatives: int) -> dict[str, Any]:
    """Return the object of a chat's choice."""
    content = []
    for item in scored:
        if item.score is not None:
            top = [_entry(token, logprob, table) for token, logprob in item.score.top[:alternatives]]
            content.append({**_entry(item.token, item.score.logprob, table), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, table: Sequence[bytes]) -> dict[str, Any]:
    data = table[token]
    return {"token": shown(data), "logprob": logprob, "bytes": list(data)}


def of_prompt(
    prompt: Sequence[int], scores: Sequence[TokenScore], table: Sequence[bytes], alternatives: int
) -> list[dict[str, Any] | None]:
    """Return, for each prompt token but the first, its log-probability and the most probable ones, by id."""
    told: list[dict[str, Any] | None] = [None]
    for token, score in zip(prompt[1:], scores, strict=True):
        ranked = {other: (logprob, place) for place, (other, logprob) in enumerate(score.top[:alternatives], 1)}
        ranked.setdefault(token, (score.logprob, score.rank))
        told.append(
            {
                str(other): {"logprob": logprob, "rank": rank, "decoded_token": shown(table[other])}
                for other, (logprob, rank) in ranked.items()
            }
        )
    return told
