"""How an answer looks: OpenAI's objects for completions and chat, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from octavo_engine.server.errors import ApiError
from octavo_engine.server.protocol.calls import streamed, whole
from octavo_engine.server.protocol.logprobs import Scored, of_chat, of_completion
from octavo_engine.server.tool_calls.events import Event, Text

_encode = msgspec.json.Encoder().encode

_DONE = b"data: [DONE]\n\n"


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request: each prompt counted once, completions summed over choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """Return the usage object."""
    total = prompt_tokens + completion_tokens
    return Usage(prompt_tokens, completion_tokens, total, PromptTokensDetails(cached_tokens))


class Delta(NamedTuple):
    """New text of one choice; `finish` once, with the last. `scored`: its tokens, if they are told.

    `events`: what the text turned out to be, in order, if that is more than content.
    """

    choice: int
    text: str
    finish: str | None
    stop_reason: int | str | None = None
    scored: Sequence[Scored] = ()
    events: Sequence[Event] = ()

    @property
    def pieces(self) -> Sequence[Event]:
        """All that it brings, in order."""
        return self.events or ((Text(self.text),) if self.text else ())


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return all the deltas of one choice as one."""
    calls = any(delta.events for delta in deltas)
    return deltas[-1]._replace(
        text="".join([delta.text for delta in deltas]),
        scored=[item for delta in deltas for item in delta.scored],
        events=[event for delta in deltas for event in delta.pieces] if calls else (),
    )


class Shape(Protocol):
    """How one answer looks on its route, streamed or whole. One object per request: it knows what has been told."""

    def beginning(self) -> bytes:
        """Return what opens a stream."""
        ...

    def chunks(self, deltas: list[Delta]) -> bytes:
        """Return the server-sent events of new text."""
        ...

    def ending(self, total: Usage) -> bytes:
        """Return what ends a stream."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return what ends a stream that breaks."""
        ...

    def whole(self, texts: list[Delta], total: Usage, prompt_logprobs: list[Any] | None = None) -> bytes:
        """Return the answer that is not streamed. `prompt_logprobs`: of each choice's prompt, if they are told."""
        ...


class Style:
    """The shapes of completions and chat."""

    def __init__(
        self,
        kind: Literal["completions", "chat"],
        model: str,
        include_usage: bool,
        alternatives: int = -1,
        token_bytes: Sequence[bytes] = (),
        calls: bool = False,
    ) -> None:
        """Begin an answer of `kind` by `model`. `alternatives`: of log-probabilities, -1 if none are told.

        calls: it may be tool calls and no text, which is `content: null`.
        """
        self._chat = kind == "chat"
        self._calls = calls
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._include_usage = include_usage
        self._begun: set[int] = set()
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        self._head: dict[str, Any] = {
            "id": prefix + secrets.token_hex(12),
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"} if self._chat else self._head
        # Of a chunk that only brings text everything but the text is known, and a stream is thousands of them.
        self._opening = b"data: " + _encode(self._chunk_head)[:-1] + b',"choices":[{"index":'
        self._before_text = b',"delta":{"content":' if self._chat else b',"text":'
        self._closing = (
            (b"}" if self._chat else b"")
            + b',"logprobs":null,"finish_reason":null}]'
            + (b',"usage":null' if include_usage else b"")
            + b"}\n\n"
        )

    def beginning(self) -> bytes:
        """Return what opens a stream: nothing."""
        return b""

    def chunks(self, deltas: list[Delta]) -> bytes:
        """Return the server-sent events of new text, at most one per choice."""
        return b"".join([self._chunk(delta) for delta in deltas])

    def ending(self, total: Usage) -> bytes:
        """Return the end of a stream: the chunk with the totals and no choices if it was asked for, then [DONE]."""
        return (self._event([], total) if self._include_usage else b"") + _DONE

    def failed(self, error: ApiError) -> bytes:
        """Return the frame that ends a stream that breaks; no [DONE] follows it."""
        return error.frame()

    def whole(self, texts: list[Delta], total: Usage, prompt_logprobs: list[Any] | None = None) -> bytes:
        """Return the answer that is not streamed. `prompt_logprobs`: of each choice's prompt, if they are told."""
        choices = [self._choice(text) for text in texts]
        answer = {**self._head, "choices": choices, "usage": total}
        if prompt_logprobs is not None and self._chat:
            answer["prompt_logprobs"] = prompt_logprobs[0]
        elif prompt_logprobs is not None:
            for choice, told in zip(choices, prompt_logprobs, strict=True):
                choice["prompt_logprobs"] = told
        return _encode(answer)

    def _chunk(self, delta: Delta) -> bytes:
        choice, text, finish, _, scored, events = delta
        if text and finish is None and not scored and not events and not (self._chat and choice not in self._begun):
            return b"".join((self._opening, b"%d" % choice, self._before_text, _encode(text), self._closing))
        calls = streamed(events)
        if not text and finish is None and not scored and not calls:
            return b""  # a call has ended, which chat does not tell
        return self._event([self._chunk_choice(delta, calls)], None)

    def _event(self, choices: list[dict[str, Any]], total: Usage | None) -> bytes:
        body = {**self._chunk_head, "choices": choices}
        if self._include_usage:
            body["usage"] = total
        return b"data: " + _encode(body) + b"\n\n"

    def _chunk_choice(self, delta: Delta, calls: list[dict[str, Any]]) -> dict[str, Any]:
        if not self._chat:
            return self._choice(delta)
        content: dict[str, Any] = {}
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            content["role"] = "assistant"
            may_be_null = self._calls and (delta.finish is None or calls)
            content["content"] = None if may_be_null and not delta.text else delta.text
        elif delta.text:
            content["content"] = delta.text
        if calls:
            content["tool_calls"] = calls
        choice = {"index": delta.choice, "delta": content, "logprobs": self._logprobs(delta) if delta.scored else None}
        return self._ending(choice, delta)

    def _choice(self, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": delta.choice}
        if self._chat:
            calls = whole(delta.events)
            text = delta.text if delta.text or not calls else None
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                choice["message"]["tool_calls"] = calls
        else:
            choice["text"] = delta.text
        choice["logprobs"] = self._logprobs(delta)
        return self._ending(choice, delta)

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._alternatives < 0:
            return None
        form = of_chat if self._chat else of_completion
        return form(delta.scored, self._token_bytes, self._alternatives)

    def _ending(self, choice: dict[str, Any], delta: Delta) -> dict[str, Any]:
        choice["finish_reason"] = delta.finish
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice


def model_card(name: str, created: int, max_model_len: int | None, parent: str | None = None) -> dict[str, object]:
    """Return one entry of `/v1/models`; `parent` is the model that an adapter belongs to."""
    card: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": "octavo", "root": name}
    if max_model_len is not None:
        card["max_model_len"] = max_model_len
    if parent is not None:
        card |= {"root": parent, "parent": parent}
    return card


def model_list(models: object) -> bytes:
    """Return the body of `/v1/models` for a list of cards, or of `/v1/models/NAME` for one."""
    return _encode({"object": "list", "data": models} if isinstance(models, list) else models)
