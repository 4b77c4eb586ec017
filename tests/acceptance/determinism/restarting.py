"""The real engine process, killed in the middle of its requests; what the next one tells is listened to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from subprocess import Popen
from typing import NamedTuple

import msgspec

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import launch_engine
from octavo_engine.ipc.messages import AdapterLoaded, LoadAdapter, Loaded, Shutdown
from octavo_engine.ipc.transport import ServerEndpoint

from .asking import Asked
from .told import Key, Listener, NotTold, Told

SILENCE_SECONDS = 120.0
"""Ends a test that waits in vain: an engine says something twice a second."""
STOP_SECONDS = 20.0


class _Running(NamedTuple):
    process: Popen[bytes]
    endpoint: ServerEndpoint


def tell_after_a_kill(config: EngineConfig, asked: Sequence[Asked], adapters: Sequence[str]) -> dict[Key, Told]:
    """Ask one engine process, kill it when a third has been answered, and ask another one all of it.

    Call it from the main thread. Raises NotTold.
    """
    return asyncio.run(_tell(config, asked, adapters))


async def _tell(config: EngineConfig, asked: Sequence[Asked], adapters: Sequence[str]) -> dict[Key, Told]:
    choices = sum(each.submit.n for each in asked)
    async with _engine(config) as first:
        await _load(first.endpoint, adapters)
        await _listen(first.endpoint, asked, choices // 3)
        first.process.kill()
        first.process.wait()
    async with _engine(config) as second:
        await _load(second.endpoint, adapters)
        told = await _listen(second.endpoint, asked, choices)
        second.endpoint.send(Shutdown())
        await asyncio.to_thread(second.process.wait, STOP_SECONDS)
    return told


async def _load(endpoint: ServerEndpoint, adapters: Sequence[str]) -> None:
    for slot, folder in enumerate(adapters):
        endpoint.send(LoadAdapter(slot, folder))
    listener, loaded = Listener(), 0
    while loaded < len(adapters):
        async with asyncio.timeout(SILENCE_SECONDS):
            message = await endpoint.receive()
        listener.take(message)
        loaded += isinstance(message, AdapterLoaded)


async def _listen(endpoint: ServerEndpoint, asked: Sequence[Asked], enough: int) -> dict[Key, Told]:
    """Ask everything; return what was told once so many choices have ended."""
    listener = Listener()
    for each in asked:
        endpoint.send(each.submit)
    while len(listener.ended) < enough:
        async with asyncio.timeout(SILENCE_SECONDS):
            listener.take(await endpoint.receive())
    return listener.told


@asynccontextmanager
async def _engine(config: EngineConfig) -> AsyncIterator[_Running]:
    """Run an engine process that has loaded its model; end it, however it is, on the way out."""
    endpoint = ServerEndpoint()
    process = launch_engine(msgspec.structs.replace(config, socket_folder=str(endpoint.folder)))
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            listener = Listener()
            while not isinstance(message := await endpoint.receive(), Loaded):
                listener.take(message)
        yield _Running(process, endpoint)
    except TimeoutError as error:
        raise NotTold(f"the engine process said nothing for {SILENCE_SECONDS:.0f} s") from error
    finally:
        process.kill()
        process.wait()
        endpoint.close()
