"""HTTP/1.1 for uvicorn by llhttp's parser (httptools), and what uvicorn leaves open there: bounds, offers to decline.

uvicorn's other parser, h11, took a sixth of the API process's time while 64 streams ran.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo_engine import contract
from octavo_engine.server.errors import ApiError
from octavo_engine.server.middleware import REQUEST_ID_HEADER, new_request_id

BACKLOG: Final = 4096
MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request line with its headers, or of the trailers behind a body, beyond what one read brings."""
_OFFERS: Final = frozenset({b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """A connection.

    The parser keeps an unfinished head, and headers behind a body, however large: here they end the connection. uvicorn
    bounds them for h11 only (https://github.com/Kludex/uvicorn/pull/1684).

    Where a client offers another protocol, as Java's does with every request, the parser leaves the body unread: the
    offer is declined by parsing the request again without it.
    """

    _unread = 0
    """Bytes since the last that were part of a whole head or of a body."""

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._unset_keepalive_if_required()
        self._unread += len(data)
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            sentence = f"The headers are larger than {MAX_HEAD_BYTES // 1024} KiB."
            self._refuse(ApiError(431, sentence, code="headers_too_large"))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the shape of every other error."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = error.body()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (REQUEST_ID_HEADER, new_request_id().encode()),
            (b"connection", b"close"),
        ]
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in headers]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            # As uvicorn does: what follows a request that closes the connection is not looked at.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(head + data[offered.args[0] :])

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join([token for token in tokens if token.lower() not in _OFFERS])
            if name not in _OFFERS and value:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        """Begin the exchange."""
        self._unread = 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            if self.cycle is not None and self.parser.get_http_version() == "1.0":
                self.cycle.send = _CloseDelimited(self.cycle)  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body on."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        self._unread = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()


class _CloseDelimited:
    """A cycle's `send` for a client of HTTP/1.0, which knows no chunks: a body of no stated length ends with its
    connection.

    (RFC 9112, section 6.1; uvicorn sends chunks whatever the version.)
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._without_length = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._without_length = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._without_length:
                self._cycle.chunked_encoding = False
        elif self._without_length:
            # uvicorn takes what it is told for the length of what is left.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def uvicorn_config(application: ASGIApp, **options: Any) -> uvicorn.Config:
    """Return how an application is served."""
    return uvicorn.Config(
        application,
        http=HttpProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=contract.HTTP_KEEP_ALIVE_SECONDS,
        backlog=BACKLOG,
        **options,
    )
