"""What the generating routes ask for in words of their own: how much, how many, and what is told beside the text."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from octavo_engine.server.errors import invalid
from octavo_engine.server.protocol.responses.fields import LOGPROBS

Generating = Literal["completions", "chat", "responses"]
DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` in completions; elsewhere it is the rest of the context."""


class Asked(NamedTuple):
    """`max_tokens`: None for the rest of the context; `max_name`: the field it comes from.

    Of `generated` choices for each prompt the best `n` are answered. `logprobs` and `prompt_logprobs` count
    alternatives, -1 for no log-probabilities.
    """

    max_tokens: int | None
    max_name: str
    n: int = 1
    generated: int = 1
    logprobs: int = -1
    prompt_logprobs: int = -1
    echo: bool = False


def read_asked(route: Generating, values: dict[str, Any]) -> Asked:
    """Return what the honoured fields of `route` ask for. Raises ApiError (400) for what contradicts itself."""
    if route == "responses":
        return Asked(values["max_output_tokens"], "max_output_tokens", logprobs=_logprobs_of_response(values))
    max_tokens, max_name = _max_tokens(values, chat=route == "chat")
    return Asked(
        max_tokens,
        max_name,
        n=values["n"],
        generated=_generated(values),
        logprobs=_logprobs_of_chat(values) if route == "chat" else values["logprobs"],
        prompt_logprobs=values["prompt_logprobs"],
        echo=bool(values.get("echo")),
    )


def _generated(values: dict[str, Any]) -> int:
    """Return how many choices are generated for each prompt. Raises the 400 of a `best_of` that means nothing."""
    n, best_of = values["n"], values.get("best_of")
    if best_of is None or best_of == n:
        return int(n)
    if best_of < n:
        raise invalid(f"'best_of' must not be less than 'n', which is {n}.", "best_of", "invalid_value")
    if values["stream"]:
        raise invalid(
            "'best_of' above 'n' cannot be streamed: what is best shows at the end.", "best_of", "invalid_value"
        )
    return int(best_of)


def _logprobs_of_chat(values: dict[str, Any]) -> int:
    if values["logprobs"]:
        return int(values["top_logprobs"])
    if values["top_logprobs"]:
        raise invalid("'top_logprobs' needs 'logprobs': true.", "top_logprobs", "invalid_value")
    return -1


def _logprobs_of_response(values: dict[str, Any]) -> int:
    if not values["include"]:
        if values["top_logprobs"]:
            raise invalid(f"'top_logprobs' needs 'include': [\"{LOGPROBS}\"].", "top_logprobs", "invalid_value")
        return -1
    if values["tools"] and values["tool_choice"] != "none":
        raise invalid(
            f"'{LOGPROBS}' cannot be told beside 'tools', since the tokens of calls belong to no text: leave one of "
            "them out, or use /v1/chat/completions.",
            "include",
            "invalid_value",
        )
    return int(values["top_logprobs"])


def _max_tokens(values: dict[str, Any], chat: bool) -> tuple[int | None, str]:
    """Return the limit on new tokens, None for the rest of the context, and the field it comes from."""
    if values["max_completion_tokens"] is not None:
        if values["max_tokens"] is not None:
            return min(values["max_completion_tokens"], values["max_tokens"]), "max_completion_tokens"
        return values["max_completion_tokens"], "max_completion_tokens"
    if values["max_tokens"] is None and not chat:
        return max(DEFAULT_COMPLETION_TOKENS, values["min_tokens"]), "max_tokens"
    return values["max_tokens"], "max_tokens"
