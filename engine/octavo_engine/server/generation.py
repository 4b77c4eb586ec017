"""Completions and chat: from a request's bytes to its last token, streamed or whole."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from typing import Final, Literal

from starlette.types import Receive, Scope, Send

from octavo_engine import contract
from octavo_engine.server import admission
from octavo_engine.server.errors import SERVER, ApiError
from octavo_engine.server.exchange import ClientGone, Exchange
from octavo_engine.server.jobs import Answer, Job, Prepared, Route
from octavo_engine.server.protocol.responses import Delta, Style, Usage, usage
from octavo_engine.server.state import ServerState
from octavo_engine.server.text_choice import TextChoice
from octavo_engine.server.ticket import Ticket

log = logging.getLogger(__name__)

_STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
INTERNAL: Final = "The server failed to answer: its log says why."


class JobEndpoint:
    """A POST route whose body a tokenising process reads. An ASGI application of its own: no framework in between."""

    def __init__(self, route: Route, state: ServerState) -> None:
        """Serve `route`."""
        self._route = route
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong reaches the client in OpenAI's shape."""
        exchange = Exchange(scope, receive, send)
        self._state.lifecycle.enter()
        try:
            await self._answer(exchange)
        except ClientGone:
            log.debug("A client of %s has gone.", self._route)
        except ApiError as error:
            if contract.HEADER_NOT_STARTED in error.headers or error.code == "context_length_exceeded":
                self._state.counters.outcomes["rejected"] += 1
            await _fail(exchange, error)
        except Exception:
            log.exception("A request to %s failed", self._route)
            await _fail(exchange, ApiError(500, INTERNAL, SERVER, code="internal_error"))
        finally:
            self._state.lifecycle.leave()

    async def _answer(self, exchange: Exchange) -> None:
        state = self._state
        state.check_accepts()
        arrived = state.clock()
        if self._route in ("completions", "chat"):
            _check_queue(state, 1, 0)
        body, holding = await exchange.read_body(state.budget)
        async with exchange:
            try:
                result = await self._read(body, exchange)
            finally:
                holding.release()
            del body
            if isinstance(result, Answer):
                await exchange.respond(200, result.body, {})
            else:
                await _generate(state, exchange, self._route, result, arrived)

    async def _read(self, body: bytes, exchange: Exchange) -> Prepared | Answer:
        """Let a tokenising process read the body. Raises ApiError."""
        state = self._state
        state.check_accepts()
        if state.jobs is None:
            raise RuntimeError("check_accepts let a request pass without tokenisers")
        model = exchange.headers.get(contract.HEADER_MODEL, "")
        return await state.jobs.run(Job(self._route, body, state.limits(), model))


async def _fail(exchange: Exchange, error: ApiError) -> None:
    try:
        await exchange.fail(error, {})
    except ClientGone:
        log.debug("A client has gone before its error.")


def _check_queue(state: ServerState, sequences: int, tokens: int) -> None:
    settings = state.settings
    error = admission.refuse(
        state.client.load(), sequences, tokens, settings.max_queue_requests, settings.max_queue_tokens
    )
    if error is not None:
        raise error


async def _generate(state: ServerState, exchange: Exchange, route: Route, prepared: Prepared, arrived: float) -> None:
    """Run an admitted request. Nothing is sent before the engine has taken it: a refusal keeps its own status."""
    prompts, n, tokens = len(prepared.prompts), prepared.n, prepared.prompt_tokens * prepared.n
    settings = state.settings
    hopeless = admission.refuse_for_ever(prompts, n, tokens, settings.max_queue_requests, settings.max_queue_tokens)
    if hopeless is not None:
        raise hopeless
    _check_queue(state, prompts * n, tokens)
    salt = exchange.headers.get(contract.HEADER_SALT) or contract.SALT_DIRECT
    if prepared.cache_salt:
        salt = f"{salt}\0{prepared.cache_salt}"
    ticket = state.client.open(prepared, salt, arrived)
    try:
        await ticket.accepted()
        kind: Literal["completions", "chat"] = "chat" if route == "chat" else "completions"
        style = Style(kind, prepared.model, prepared.include_usage)
        answer = _Texts(state, prepared, ticket)
        if prepared.stream:
            await _stream(exchange, answer, style)
        else:
            await _whole(exchange, answer, style)
    finally:
        ticket.close()


class _Texts:
    """The texts of one request's choices as they grow."""

    def __init__(self, state: ServerState, prepared: Prepared, ticket: Ticket) -> None:
        text_model = state.text_model
        if text_model is None:
            raise RuntimeError("a request was admitted before the tokenizer was loaded")
        self._prepared = prepared
        self._ticket = ticket
        self._choices = [
            TextChoice(
                text_model,
                _last_tokens(prompt),
                prepared.stop_strings,
                prepared.include_stop,
                prepared.stop.min_tokens,
            )
            for prompt in prepared.prompts
            for _ in range(prepared.n)
        ]

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yield new text until every choice has ended: exactly one delta of each carries a finish."""
        going = len(self._choices)
        while going:
            deltas = []
            for index, output in sorted((await self._ticket.take()).items()):
                choice = self._choices[index]
                if choice.finish_reason is not None:
                    continue
                text = choice.take(output)
                if choice.stopped_by_text:
                    self._ticket.end_choice(index)
                if choice.finish_reason is not None:
                    going -= 1
                if text or choice.finish_reason is not None:
                    deltas.append(Delta(index, text, choice.finish_reason, choice.stop_reason))
            if deltas:
                yield deltas

    def usage(self) -> Usage:
        """Return the totals so far."""
        completion = sum(choice.completion_tokens for choice in self._choices)
        return usage(self._prepared.prompt_tokens, completion, self._ticket.cached_tokens)


def _last_tokens(prompt: bytes) -> array[int]:
    """Return the prompt's last ids: enough for a detokenizer to see an unfinished character."""
    ids = array("i")
    ids.frombytes(prompt[-16 * 4 :])
    return ids


async def _stream(exchange: Exchange, answer: _Texts, style: Style) -> None:
    await exchange.start(200, _STREAM_HEADERS)
    await exchange.write(b"")  # the headers leave now, not with the first token
    async for deltas in answer.deltas():
        await exchange.write(style.chunks(deltas))
    await exchange.write(style.ending(answer.usage()), more=False)


async def _whole(exchange: Exchange, answer: _Texts, style: Style) -> None:
    texts: dict[int, list[str]] = {}
    ended: dict[int, Delta] = {}
    async for deltas in answer.deltas():
        for delta in deltas:
            texts.setdefault(delta.choice, []).append(delta.text)
            if delta.finish is not None:
                ended[delta.choice] = delta
        await asyncio.sleep(0)  # thousands of tokens in one go must not hold the loop
    wholes = [ended[index]._replace(text="".join(texts[index])) for index in sorted(ended)]
    await exchange.respond(200, style.whole(wholes, answer.usage()), {})
