"""Start the engine process. Here, because the API process may import nothing of the engine's own rooms."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Final

import msgspec

from octavo_engine.ipc import signals
from octavo_engine.ipc.config import EngineConfig

ENGINE_MODULE: Final = "octavo_engine.worker"


def spawn_engine() -> subprocess.Popen[bytes]:
    """Start `python -m octavo_engine.worker`, which imports what it needs while it waits for its configuration.

    Call it from the main thread (RuntimeError otherwise): the engine dies with the *thread* that started it
    (PR_SET_PDEATHSIG), and only the main thread lives as long as the process. Its log goes to our standard error.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("Start the engine from the main thread: it dies with the thread that started it.")
    # -P: the working folder is no place to import from.
    with signals.held_back():
        return subprocess.Popen([sys.executable, "-P", "-m", ENGINE_MODULE], stdin=subprocess.PIPE, close_fds=True)


def configure_engine(process: subprocess.Popen[bytes], config: EngineConfig) -> None:
    """Hand a spawned engine its configuration over standard input; it loads the model then."""
    stdin = process.stdin
    if stdin is None:
        raise RuntimeError("The engine process has no standard input.")
    # An engine that died at once is noticed by whoever watches the process, as any other death is.
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(msgspec.json.encode(msgspec.structs.replace(config, parent_pid=os.getpid())))


def launch_engine(config: EngineConfig) -> subprocess.Popen[bytes]:
    """Spawn and configure an engine. Call it from the main thread."""
    process = spawn_engine()
    configure_engine(process, config)
    return process
