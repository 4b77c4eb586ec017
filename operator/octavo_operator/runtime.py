"""The operator's process: endpoints on every replica; Kopf and the autoscaler only while the lease is held."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any, Final

import kopf

from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.state import SteadyClock
from octavo_operator.config import Config
from octavo_operator.kube.client import Client
from octavo_operator.kube.credentials import Credentials, load_credentials
from octavo_operator.kube.session import WatchPulse
from octavo_operator.leadership import Leadership
from octavo_operator.reconcile.handlers import build_registry
from octavo_operator.reconcile.rollouts import Rollouts
from octavo_operator.reconcile.service import Tools
from octavo_operator.web import endpoints

EXIT_LEASE_LOST: Final = 3
_LOG: Final = logging.getLogger(__name__)


async def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ValueError` when there are no credentials."""
    credentials = load_credentials(config.kubeconfig)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
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
        async with Collector(clock) as collector:
            tools = Tools(client, collector, clock, config.engine, Rollouts())
            await kopf.operator(
                registry=build_registry(tools, credentials, leadership.check, pulse),
                standalone=True,
                clusterwide=not config.namespaces,
                namespaces=config.namespaces,
                stop_flag=stop,
            )
    finally:
        await client.close()


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
