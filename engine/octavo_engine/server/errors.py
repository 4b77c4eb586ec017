"""Errors as OpenAI's clients expect them: one object with `message`, `type`, `param`, `code`, whatever went wrong."""

from __future__ import annotations

from typing import Final

import msgspec

from octavo_engine import contract

INVALID_REQUEST: Final = "invalid_request_error"
AUTHENTICATION: Final = "authentication_error"
OVERLOADED: Final = "rate_limit_error"
UNAVAILABLE: Final = "service_unavailable_error"
SERVER: Final = "server_error"


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """What is sent: `{"error": {…}}`."""

    error: ErrorBody


class ApiError(Exception):
    """A refusal or a failure that a client gets to see. `headers` go out with it, lower-case names."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Make an error with its HTTP status."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the JSON body; what JSON cannot carry (a lone surrogate quoted from the input) is replaced."""
        message = self.message.encode("utf-8", "replace").decode()
        param = None if self.param is None else self.param.encode("utf-8", "replace").decode()
        return msgspec.json.encode(ErrorEnvelope(ErrorBody(message, self.kind, param, self.code)))

    def frame(self) -> bytes:
        """Return the error as one server-sent event: how a stream that has begun ends when it breaks."""
        return b"data: " + self.body() + b"\n\n"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400 that names the parameter at fault."""
    return ApiError(400, message, INVALID_REQUEST, param, code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 404."""
    return ApiError(404, message, INVALID_REQUEST, param, code)


def too_large() -> ApiError:
    """Return the 413 of a body over the limit."""
    limit = contract.MAX_BODY_BYTES // (1024 * 1024)
    return ApiError(413, f"The request body is larger than {limit} MiB.", code="request_too_large")


def _not_started() -> dict[str, str]:
    return {"retry-after": str(contract.RETRY_AFTER_SECONDS), contract.HEADER_NOT_STARTED: "1"}


def queue_full(message: str = "The queue is full. Retry in a moment.") -> ApiError:
    """Return a 429 that began nothing: the request may go to another replica."""
    return ApiError(429, message, OVERLOADED, code="queue_full", headers=_not_started())


def unavailable(message: str, close: bool = False) -> ApiError:
    """Return a 503 that began nothing; `close` asks the client to come back on a new connection, elsewhere."""
    headers = _not_started()
    if close:
        headers["connection"] = "close"
    return ApiError(503, message, UNAVAILABLE, code="service_unavailable", headers=headers)


def engine_failed(message: str) -> ApiError:
    """Return the error of a request that had begun when the engine failed it."""
    return ApiError(500, message, SERVER, code="engine_error")


def context_length(
    limit: int, prompt_tokens: int, param: str, counted: bool = True, generates: bool = True
) -> ApiError:
    """Return the refusal of a prompt that leaves no room for one token, in OpenAI's words.

    Without `counted`, `prompt_tokens` is a lower bound: nothing was tokenised. One that does not generate needs no room
    behind its prompt.
    """
    room = ", and at least one token must be left for the completion" if generates else ""
    number = f"{'' if counted else 'at least '}{prompt_tokens}"
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {number} "
        f"tokens{room}. Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )
