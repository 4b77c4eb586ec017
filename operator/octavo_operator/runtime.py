"""The operator's process: endpoints on every replica; Kopf and the autoscaler only while the lease is held."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Coroutine, Sequence
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
from octavo_operator.reconcile.finalizer import release_deleted
from octavo_operator.reconcile.handlers import build_registry
from octavo_operator.reconcile.rollouts import Rollouts
from octavo_operator.reconcile.service import Tools
from octavo_operator.web import Readiness, endpoints

EXIT_LEASE_LOST: Final = 3
_LOG: Final = logging.getLogger(__name__)


async def run(config: Config, credentials: Credentials) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    pulse, readiness = WatchPulse(), Readiness()
    leadership = Leadership(
        credentials,
        config.lease_namespace or credentials.namespace,
        config.lease_name,
        config.identity,
        on_lost=_exit_at_once,
    )
    async with endpoints(config.host, config.metrics_port, config.health_port, pulse.silent, readiness):
        leadership.start()
        try:
            if await _first(_acquired(leadership), stop.wait()):
                _LOG.info("leading as %s", config.identity)
                await _lead(config, credentials, leadership, pulse, readiness, stop)
        finally:
            await asyncio.to_thread(leadership.stop)


async def _lead(
    config: Config,
    credentials: Credentials,
    leadership: Leadership,
    pulse: WatchPulse,
    readiness: Readiness,
    stop: asyncio.Event,
) -> None:
    clock = SteadyClock()
    client = Client(credentials, leadership.check)
    try:
        if not await _first(_served(client, config.namespaces, readiness), stop.wait()):
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


async def _served(client: Client, namespaces: Sequence[str], readiness: Readiness) -> None:
    """Wait until our kind is served and may be written: Kopf looks once, at its start, and serves it then or never."""
    while True:
        problem = None
        try:
            verbs = await client.verbs(INFERENCE_SERVICES)
            if not verbs:
                problem = "the CRD of InferenceService is not installed"
            elif "patch" not in verbs:
                problem = "the CRD of InferenceService is being deleted: install it again when it is gone"
                await release_deleted(client, namespaces)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            problem = f"the API server does not serve InferenceServices: {error}"
        if problem is not None and problem != readiness.problem:
            _LOG.warning("%s; waiting", problem)
        readiness.problem = problem
        if problem is None:
            return
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
