"""Loading and unloading LoRA adapters on the admin port; the bodies are vLLM's."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from octavo_engine.ipc.transport import PeerGone
from octavo_engine.server.errors import invalid, unavailable
from octavo_engine.server.state import ServerState


class LoadBody(msgspec.Struct, frozen=True):
    """What to load, and under which model name."""

    lora_name: str
    lora_path: str


class UnloadBody(msgspec.Struct, frozen=True):
    """Which model name to give up."""

    lora_name: str


class Adapted(msgspec.Struct, frozen=True):
    """An adapter as it was loaded: `digest` is of its files."""

    name: str
    digest: str
    status: str = "loaded"


class Unloaded(msgspec.Struct, frozen=True):
    """An adapter that nobody uses any more."""

    name: str
    status: str = "unloaded"


Body = TypeVar("Body", LoadBody, UnloadBody)


async def load(state: ServerState, body: bytes) -> bytes:
    """Load an adapter; the answer comes when requests may name it. Raises ApiError."""
    asked = _read(body, LoadBody)
    state.client.check_ready()
    try:
        digest = await state.client.adapters.load(asked.lora_name, asked.lora_path, state.settings.served_names)
    except PeerGone as error:
        raise unavailable("The engine does not respond.") from error
    return msgspec.json.encode(Adapted(asked.lora_name, digest))


async def unload(state: ServerState, body: bytes) -> bytes:
    """Refuse new requests with an adapter, and answer when the last one with it has ended. Raises ApiError."""
    asked = _read(body, UnloadBody)
    try:
        gone = state.client.adapters.unload(asked.lora_name)
    except PeerGone as error:
        raise unavailable("The engine does not respond.") from error
    await asyncio.shield(gone)
    return msgspec.json.encode(Unloaded(asked.lora_name))


def _read(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        fields = ", ".join(f"'{field}'" for field in kind.__struct_fields__)
        raise invalid(f"The body must be a JSON object with {fields}: {error}.", code="invalid_value") from None
