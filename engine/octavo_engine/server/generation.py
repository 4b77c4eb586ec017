"""Completions, chat and responses: from a request's bytes to its last token, streamed or whole.

What all job routes begin with is here too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal

from starlette.types import Receive, Scope, Send

from octavo_engine import contract
from octavo_engine.server import admission
from octavo_engine.server.embeddings import embed
from octavo_engine.server.errors import SERVER, ApiError
from octavo_engine.server.exchange import ClientGone, Exchange
from octavo_engine.server.jobs import Answer, Job, Prepared, Route
from octavo_engine.server.protocol.answers import Delta, Shape, Style, joined
from octavo_engine.server.protocol.responses.shape import ResponseShape
from octavo_engine.server.state import ServerState
from octavo_engine.server.texts import Texts
from octavo_engine.server.tokenizer import TextModel

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
        if self._route not in ("tokenize", "detokenize"):
            state.check_queue(1, 0)
        body, holding = await exchange.read_body(state.budget)
        async with exchange:
            try:
                result = await self._read(body, exchange)
            finally:
                holding.release()
            del body
            if isinstance(result, Answer):
                await exchange.respond(200, result.body, {})
            elif result.embedding is not None:
                await embed(state, exchange, result, result.embedding, arrived)
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


async def _generate(state: ServerState, exchange: Exchange, route: Route, prepared: Prepared, arrived: float) -> None:
    """Run an admitted request. Nothing is sent before the engine has taken it: a refusal keeps its own status."""
    prompts, n, tokens = len(prepared.prompts), prepared.n, prepared.prompt_tokens * prepared.n
    settings = state.settings
    hopeless = admission.refuse_for_ever(prompts, n, tokens, settings.max_queue_requests, settings.max_queue_tokens)
    if hopeless is not None:
        raise hopeless
    state.check_queue(prompts * n, tokens)
    ticket = state.client.open(prepared, prepared.salt_within(exchange.salt), arrived)
    try:
        await ticket.accepted()
        answer = Texts(text_model_of(state), prepared, ticket)
        shape = _shape(route, prepared, answer)
        if prepared.stream:
            await _stream(exchange, answer, shape)
        else:
            await _whole(exchange, answer, shape)
    finally:
        ticket.close()


def text_model_of(state: ServerState) -> TextModel:
    """Return the model's text side, which is there since before anything was admitted."""
    if state.text_model is None:
        raise RuntimeError("a request was admitted before the tokenizer was loaded")
    return state.text_model


def _shape(route: Route, prepared: Prepared, answer: Texts) -> Shape:
    if route == "responses":
        return ResponseShape(prepared.model, prepared.repeated, prepared.logprobs, answer.token_bytes)
    calls = prepared.tool_use is not None
    kind: Literal["completions", "chat"] = "chat" if route == "chat" else "completions"
    return Style(kind, prepared.model, prepared.include_usage, prepared.logprobs, answer.token_bytes, calls)


async def _stream(exchange: Exchange, answer: Texts, shape: Shape) -> None:
    await exchange.start(200, _STREAM_HEADERS, shape.failed)
    await exchange.write(shape.beginning())  # the headers leave now, not with the first token
    async for deltas in answer.deltas():
        await exchange.write(shape.chunks(deltas))
    await exchange.write(shape.ending(answer.usage()), more=False)


async def _whole(exchange: Exchange, answer: Texts, shape: Shape) -> None:
    told: dict[int, list[Delta]] = {}
    async for deltas in answer.deltas():
        for delta in deltas:
            told.setdefault(delta.choice, []).append(delta)
        await asyncio.sleep(0)  # thousands of tokens in one go must not hold the loop
    best = answer.best_choices()
    texts = [joined(told[choice])._replace(choice=index) for index, choice in enumerate(best)]
    await exchange.respond(200, shape.whole(texts, answer.usage(), answer.prompt_logprobs(best)), {})
