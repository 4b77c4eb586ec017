"""How a response looks: one object, whole or as the typed, numbered events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo_engine.server.errors import ApiError
from octavo_engine.server.protocol.answers import Delta, Usage
from octavo_engine.server.protocol.logprobs import of_chat
from octavo_engine.server.protocol.responses.output import Ended, Output
from octavo_engine.server.tool_calls.events import Text

_encode = msgspec.json.Encoder().encode

_TEXT = b"event: response.output_text.delta\ndata: "


class ResponseShape:
    """The shape of `/v1/responses`, whose answers have one choice."""

    def __init__(self, model: str, repeated: bytes, alternatives: int = -1, token_bytes: Sequence[bytes] = ()) -> None:
        """Begin an answer by `model`. `alternatives`: of log-probabilities, -1 if none are told.

        repeated: what it says of its request, a JSON object with members.
        """
        self._head = {
            "id": "resp_" + secrets.token_hex(12),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
        }
        self._repeated = repeated
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._output = Output()
        self._events = 0
        self._status = "in_progress"

    def beginning(self) -> bytes:
        """Return the events that open a stream."""
        response = self._response()
        return self._told("response.created", response) + self._told("response.in_progress", response)

    def chunks(self, deltas: list[Delta]) -> bytes:
        """Return the events of new text and of new pieces of calls."""
        return b"".join([self._chunk(delta) for delta in deltas])

    def ending(self, total: Usage) -> bytes:
        """Return the event that ends a stream, with the whole response."""
        return self._told(f"response.{self._status}", self._response(total))

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream that breaks, with what there was of the response."""
        self._output.break_off()
        self._status = "failed"
        return self._told("response.failed", self._response(error=error))

    def whole(self, texts: list[Delta], total: Usage, prompt_logprobs: list[Any] | None = None) -> bytes:
        """Return the response that is not streamed."""
        (text,) = texts
        self._take(text)
        return self._response(total)

    def _chunk(self, delta: Delta) -> bytes:
        text = delta.text
        # Of an event that only brings text everything but the text is known, and a stream is thousands of them.
        if text and delta.finish is None and not delta.scored and not delta.events:
            opening = self._output.extend(text)
            if opening is not None:
                closing = b',"sequence_number":%d}\n\n' % self._events
                self._events += 1
                return b"".join((_TEXT, opening, _encode(text), closing))
        return b"".join([self._event(event) for event in self._take(delta)])

    def _take(self, delta: Delta) -> list[dict[str, Any]]:
        logprobs = of_chat(delta.scored, self._token_bytes, self._alternatives)["content"] if delta.scored else []
        # A token that completes no text is told all the same.
        events = self._output.add(delta.pieces or ((Text(""),) if logprobs else ()), logprobs)
        if delta.finish is None:
            return events
        ended: Ended = "incomplete" if delta.finish == "length" else "completed"
        self._status = ended
        return events + self._output.finish(ended)

    def _response(self, total: Usage | None = None, error: ApiError | None = None) -> bytes:
        """Return the response as it is now."""
        cut = self._status == "incomplete"
        told = {
            **self._head,
            "status": self._status,
            "error": None if error is None else _error(error),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output.told(),
            "usage": None if total is None else _usage(total),
        }
        return b"".join((_encode(told)[:-1], b",", self._repeated[1:]))

    def _told(self, kind: str, response: bytes) -> bytes:
        return self._event({"type": kind, "response": msgspec.Raw(response)})

    def _event(self, event: dict[str, Any]) -> bytes:
        body = _encode({**event, "sequence_number": self._events})
        self._events += 1
        return b"".join((b"event: ", event["type"].encode(), b"\ndata: ", body, b"\n\n"))


def _error(error: ApiError) -> dict[str, str]:
    """Return what broke a response, under one of the codes that this route knows."""
    return {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}


def _usage(total: Usage) -> dict[str, Any]:
    """Return the totals by this route's names. What was not found in the cache has been written to it."""
    cached = total.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": total.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": total.prompt_tokens - cached},
        "output_tokens": total.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total.total_tokens,
    }
