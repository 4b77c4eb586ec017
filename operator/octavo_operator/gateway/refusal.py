"""What the gateway refuses itself: OpenAI's error object, one sentence with the remedy, and never a request begun."""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

import msgspec

from octavo_engine import contract

INVALID_REQUEST: Final = "invalid_request_error"
AUTHENTICATION: Final = "authentication_error"
RATE_LIMIT: Final = "rate_limit_error"
UNAVAILABLE: Final = "service_unavailable_error"


class _Error(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class _Envelope(msgspec.Struct, frozen=True):
    error: _Error


class Refusal(NamedTuple):
    """An answer that began nothing. `retry_after` is in whole seconds, None where to come again would be in vain."""

    status: int
    message: str
    kind: str
    code: str
    param: str | None = None
    retry_after: int | None = None

    def body(self) -> bytes:
        """Return the JSON body; what JSON cannot carry (a lone surrogate quoted from the input) is replaced."""
        message = self.message.encode("utf-8", "replace").decode()
        return msgspec.json.encode(_Envelope(_Error(message, self.kind, self.param, self.code)))

    def headers(self) -> dict[str, str]:
        """Return the headers that go with it, lower-case names."""
        headers = {"content-type": "application/json", contract.HEADER_NOT_STARTED: "1"}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def _quoted(text: str) -> str:
    """Return a name as the client gave it, shortened: an error is no place for a megabyte of input."""
    return repr(text if len(text) <= 200 else f"{text[:200]}…")


def bad_body(why: str, param: str | None = None) -> Refusal:
    """Return the 400 of a body the gateway cannot read."""
    return Refusal(400, why, INVALID_REQUEST, "invalid_body", param)


def no_key() -> Refusal:
    """Return the 401 of a request without a key."""
    message = "This model needs an API key and none was given; send it as 'Authorization: Bearer KEY'."
    return Refusal(401, message, AUTHENTICATION, "missing_api_key")


def wrong_key() -> Refusal:
    """Return the 401 of a key that is not in the service's Secret."""
    message = "The API key given is none of this model's; ask its owner for one."
    return Refusal(401, message, AUTHENTICATION, "invalid_api_key")


def no_such_path(path: str) -> Refusal:
    """Return the 404 of a path that the gateway does not route."""
    message = f"There is nothing at {_quoted(path)}; use the paths under /v1/, /tokenize or /detokenize."
    return Refusal(404, message, INVALID_REQUEST, "unknown_path")


def no_such_model(model: str) -> Refusal:
    """Return the 404 of a name that no service bears."""
    message = f"The model {_quoted(model)} does not exist; GET {contract.PATH_MODELS} lists those that do."
    return Refusal(404, message, INVALID_REQUEST, "model_not_found", "model")


def too_large(limit: int) -> Refusal:
    """Return the 413 of a body above `limit` bytes."""
    message = f"The request body is larger than {limit / (1024 * 1024):g} MiB; send less."
    return Refusal(413, message, INVALID_REQUEST, "request_too_large")


def over_limit(what: str, limit: int, seconds: float) -> Refusal:
    """Return the 429 of a tenant's limit; `what` is said in words, `seconds` is when there is room again."""
    wait = max(1, ceil(seconds))
    message = f"Your limit of {limit} {what} is used up; retry in {wait} s."
    return Refusal(429, message, RATE_LIMIT, "rate_limit_exceeded", retry_after=wait)


def over_every_limit(tokens: int, limit: int) -> Refusal:
    """Return the 429 of one request that is more than a whole minute's tokens: to retry it would be in vain."""
    message = (
        f"This request alone is about {tokens} tokens, of {limit} that you may use a minute; send a shorter prompt or "
        "ask for fewer tokens."
    )
    return Refusal(429, message, RATE_LIMIT, "request_exceeds_limit")


def hold_full(limit: int) -> Refusal:
    """Return the 503 when as many requests wait for a replica as may."""
    message = f"No replica is ready, and {limit} requests wait for one already, as many as may; retry in a moment."
    return _unavailable(message, "hold_full")


def held_too_long(seconds: float) -> Refusal:
    """Return the 503 of a request that waited its whole time for a replica."""
    return _unavailable(f"No replica became ready within {seconds:g} s; retry later.", "no_replica_in_time")


def no_replica() -> Refusal:
    """Return the 503 when no replica is there and none is expected."""
    message = "This model has no replica and none is starting; it is suspended, or retry later."
    return _unavailable(message, "no_replica")


def not_informed() -> Refusal:
    """Return the 503 of a picker that has not learned yet which models there are: a 404 would be a lie."""
    return _unavailable("The gateway is starting and does not know its models yet; retry in a moment.", "starting")


def picker_gone() -> Refusal:
    """Return the 503 that Envoy itself answers while there is no picker (`local_reply_config`)."""
    return _unavailable("The gateway is restarting; retry in a moment.", "gateway_restarting")


def _unavailable(message: str, code: str) -> Refusal:
    return Refusal(503, message, UNAVAILABLE, code, retry_after=contract.RETRY_AFTER_SECONDS)
