"""`octavo serve`: run the API process, and the engine process beside it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

from octavo_engine.commands.progress import LoadingLog
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import spawn_engine
from octavo_engine.server.settings import ServerSettings


def serve(settings: ServerSettings, engine: EngineConfig) -> int:
    """Serve until drained; return the exit code."""
    # Before the server's own imports, which take as long as the engine's: the two go side by side.
    with spawn_engine() as spawned:
        return _serve(settings, engine, spawned)


def _serve(settings: ServerSettings, engine: EngineConfig, spawned: subprocess.Popen[bytes]) -> int:
    from octavo_engine.server.run import EXIT_FAILED, ApiProcess, StartError

    logging.basicConfig(
        level=engine.log_level.upper(),
        format="%(asctime)s %(levelname)s server %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    loading = LoadingLog()
    name = settings.served_names[0]
    exposed = settings.api_keys_file is None and settings.host in ("0.0.0.0", "::")

    def ready(url: str) -> None:
        loading.ready(name, url)
        if exposed:
            loading.exposed()

    async def run() -> int:
        return await ApiProcess(settings, engine, spawned, loading.report, ready).run()

    try:
        return asyncio.run(run())
    except StartError as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        return EXIT_FAILED
