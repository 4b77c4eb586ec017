"""The operator's process: endpoints on every replica; Kopf and the autoscaler only while the lease is held."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Coroutine
from typing import Any, Final

import aiohttp
import kopf

from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.state import SteadyClock
from octavo_operator.config import Config
from octavo_operator.kube.client import ApiError, Client
from octavo_operator.kube.credentials import Credentials
from octavo_operator.kube.resources import INFERENCE_SERVICES
from octavo_operator.kube.session import WatchPulse
from octavo_operator.leadership import Leadership
from octavo_operator.reconcile.handlers import build_registry
from octavo_operator.reconcile.rollouts import Rollouts
from octavo_operator.reconcile.service import Tools
from octavo_operator.web import endpoints

EXIT_LEASE_LOST: Final = 3
_LOG: Final = logging.getLogger(__name__)


async def run(config: Config, credentials: Credentials) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    pulse = WatchPulse()
    leadership = Leadership(
        credentials,
        config.lease_namespace or credentials.namespace,
        config.lease_name,
        config.identity,
        on_lost=_exit_at_once,
    )
    async with endpoints(config.host, config.metrics_port, config.health_port, pulse.silent):
        leadership.start()
        try:
            if await _first(_acquired(leadership), stop.wait()):
                _LOG.info("leading as %s", config.identity)
                await _lead(config, credentials, leadership, pulse, stop)
        finally:
            await asyncio.to_thread(leadership.stop)


async def _lead(
    config: Config, credentials: Credentials, leadership: Leadership, pulse: WatchPulse, stop: asyncio.Event
) -> None:
    clock = SteadyClock()
    client = Client(credentials, leadership.check)
    try:
        if not await _first(_served(client), stop.wait()):
            return
        async with Collector(clock) as collector:
            tools = Tools(client, collector, clock, config.engine, Rollouts())
            await kopf.operator(
                registry=build_registry(tools, credentials, leadership.check, pulse, lambda: _stop_on_signals(stop)),
                standalone=True,
                clusterwide=not config.namespaces,
                namespaces=config.namespaces,
                stop_flag=stop,
            )
    finally:
        await client.close()


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT set `stop`.

    Kopf takes the signals over at its start, and at its end waits 5 s for the waiter of a flag that nobody has set.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _served(client: Client) -> None:
    """Wait until our kind is served: Kopf looks once, at its start, and would never see a CRD that comes later."""
    told = False
    while True:
        try:
            if await client.serves(INFERENCE_SERVICES):
                return
            problem = "the CRD of InferenceService is not installed"
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            problem = f"the API server does not say what it serves: {error}"
        if not told:
            _LOG.warning("%s; waiting", problem)
            told = True
        await asyncio.sleep(random.uniform(1.0, 3.0))


async def _acquired(leadership: Leadership) -> None:
    while not leadership.acquired.is_set():
        await asyncio.to_thread(leadership.acquired.wait, 0.5)


async def _first(wanted: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object]) -> bool:
    """Wait for either; return whether the first one is done."""
    tasks = [asyncio.create_task(each) for each in (wanted, other)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finished = tasks[0].done()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return finished


def _exit_at_once() -> None:
    """Another process may act from now on: nothing of this one may finish what it began."""
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)
