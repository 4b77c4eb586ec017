"""The operator's health and metrics endpoints, served by every replica."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_operator import metrics

PATH_ALIVE: Final = "/healthz"
PATH_READY: Final = "/readyz"


@dataclass
class Readiness:
    """Why this process cannot work, `None` when it can: leading, or standing by."""

    problem: str | None = None


@asynccontextmanager
async def endpoints(
    host: str, metrics_port: int, health_port: int, silent: Callable[[], list[str]], readiness: Readiness
) -> AsyncIterator[None]:
    """Serve both ports. A stuck event loop answers no probe; an open watch that is deaf answers 503 and says which."""

    async def alive(_: web.Request) -> web.Response:
        deaf = silent()
        return web.Response(status=503 if deaf else 200, text=f"silent watches: {', '.join(deaf)}" if deaf else "ok")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=503 if readiness.problem else 200, text=readiness.problem or "ok")

    async def exposition(_: web.Request) -> web.Response:
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    health = web.Application()
    health.add_routes([web.get(PATH_ALIVE, alive), web.get(PATH_READY, ready)])
    numbers = web.Application()
    numbers.add_routes([web.get("/metrics", exposition)])
    runners = [web.AppRunner(each, access_log=None) for each in (health, numbers)]
    try:
        for runner, port in zip(runners, (health_port, metrics_port), strict=True):
            await runner.setup()
            await web.TCPSite(runner, host, port).start()
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
