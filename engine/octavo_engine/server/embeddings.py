"""Embeddings: every input pooled by the engine, then one answer with all of them."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from octavo_engine import contract
from octavo_engine.server.errors import engine_failed, invalid
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.jobs import EmbeddingForm, Prepared
from octavo_engine.server.protocol.embeddings import pieces
from octavo_engine.server.state import ServerState

_WRITE_BYTES: Final = 64 * 1024


async def embed(
    state: ServerState, exchange: Exchange, prepared: Prepared, form: EmbeddingForm, arrived: float
) -> None:
    """Answer a request whose prompts are to be pooled. Raises ApiError before anything is sent.

    The engine gets a part of a long request at a time, no more than a request for completions may have prompts: the
    queue is for others too.
    """
    settings, prompts = state.settings, prepared.prompts
    _check_tokens(prepared, settings.max_queue_tokens)
    at_once = min(contract.MAX_PROMPTS, settings.max_queue_requests or contract.MAX_PROMPTS)
    salt = prepared.salt_within(exchange.salt)
    vectors: list[bytes] = []
    for first in range(0, len(prompts), at_once):
        part = msgspec.structs.replace(prepared, prompts=prompts[first : first + at_once])
        vectors += await _pool(state, part, salt, arrived)
    await _answer(exchange, prepared, form, vectors)


def _check_tokens(prepared: Prepared, most: int) -> None:
    tokens = prepared.prompt_tokens
    if most and tokens > most and len(prepared.prompts) > 1:
        raise invalid(
            f"The inputs of this request have {tokens} tokens in all, and a request may have {most} "
            "(--max-queue-tokens). Send them in parts.",
            param="input",
            code="invalid_value",
        )


async def _pool(state: ServerState, prepared: Prepared, salt: str, arrived: float) -> list[bytes]:
    """Return the prompts' vectors as the engine tells them, in order."""
    count = len(prepared.prompts)
    state.check_queue(count, prepared.prompt_tokens)
    ticket = state.client.open(prepared, salt, arrived)
    vectors: dict[int, bytes] = {}
    try:
        await ticket.accepted()
        while len(vectors) < count:
            for index, output in (await ticket.take()).items():
                if output.finish in ("error", "abort"):
                    raise engine_failed(output.detail or "The engine ended the request.")
                if output.finish:
                    vectors[index] = output.pooled
    finally:
        ticket.close()
    return [vectors[index] for index in range(count)]


async def _answer(exchange: Exchange, prepared: Prepared, form: EmbeddingForm, vectors: list[bytes]) -> None:
    """Send the answer: whole if it is small, else piece by piece, since all of it can be a hundred megabytes."""
    waiting = bytearray()
    for piece in pieces(vectors, prepared.model, prepared.prompt_tokens, form.dimensions, form.base64):
        if len(waiting) >= _WRITE_BYTES:
            if not exchange.started:
                await exchange.start(200, {"content-type": "application/json"})
            await exchange.write(bytes(waiting))
            waiting.clear()
            await asyncio.sleep(0)  # millions of numbers in one go must not hold the loop
        waiting += piece
    if exchange.started:
        await exchange.write(bytes(waiting), more=False)
    else:
        await exchange.respond(200, bytes(waiting), {})
