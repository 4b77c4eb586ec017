"""Pure ASGI middleware: keys before anything else, and one name per exchange in the answer's headers.

Never Starlette's BaseHTTPMiddleware: it hides a client's leaving and buffers a slow reader's stream without bound.
"""

from __future__ import annotations

import secrets
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine import contract
from octavo_engine.server.errors import AUTHENTICATION, ApiError
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.keys import KeyFile

REQUEST_ID_HEADER: Final = b"x-request-id"
_MAX_REQUEST_ID: Final = 128


def new_request_id() -> str:
    """Return a name for an exchange that nobody has named."""
    return "req-" + secrets.token_hex(12)


def _header(scope: Scope, name: str) -> str:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted), "")


class Trust:
    """Takes the gateway's headers away from everybody but the gateway, and names the exchange."""

    def __init__(self, app: ASGIApp, credential: KeyFile | None) -> None:
        """Trust callers that show `credential`; nobody, if there is none."""
        self._app = app
        self._credential = credential

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, its scope's headers cleaned."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        shown = _header(scope, contract.HEADER_GATEWAY_CREDENTIAL)
        trusted = bool(shown) and self._credential is not None and self._credential.accepts(shown)
        drop = {contract.HEADER_GATEWAY_CREDENTIAL.encode()}
        if not trusted:
            drop |= {name.encode() for name in contract.TRUSTED_HEADERS}
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in drop]
        request_id = _request_id(scope) if trusted else ""
        request_id = request_id or new_request_id()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (REQUEST_ID_HEADER, request_id.encode("latin-1"))]
            await send(message)

        await self._app({**scope, "headers": headers}, receive, named)


def _request_id(scope: Scope) -> str:
    value = _header(scope, contract.HEADER_REQUEST_ID)
    return value if len(value) <= _MAX_REQUEST_ID and value.isprintable() else ""


class RequireKey:
    """Answers 401 to a caller without a key, on every path but the probes' and the scraper's."""

    def __init__(self, app: ASGIApp, keys: KeyFile | None) -> None:
        """Ask for one of `keys`; for none, if there are no keys."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or refuse it."""
        if scope["type"] != "http" or self._keys is None or scope["path"] in contract.PATHS_WITHOUT_KEY:
            await self._app(scope, receive, send)
            return
        scheme, _, key = _header(scope, "authorization").partition(" ")
        if scheme.lower() == "bearer" and self._keys.accepts(key.strip()):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "Give a valid API key: 'Authorization: Bearer KEY'.",
            AUTHENTICATION,
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await Exchange(scope, receive, send).fail(error, {})
