"""The engine process: `python -m octavo_engine.worker`, started by `ipc.launch.launch_engine`.

Exit codes: 0 after `Shutdown`, 1 after `Failed` or when the API process is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import Failed
from octavo_engine.ipc.transport import EngineEndpoint, PeerGone
from octavo_engine.worker.cgroup import compute_threads
from octavo_engine.worker.parent import die_with_parent

if TYPE_CHECKING:
    from octavo_engine.worker.start import Load

logger = logging.getLogger(__name__)


def main(load: Load | None = None) -> int:
    """Read the configuration from standard input and serve what `load` loads. Returns the exit code."""
    # Nothing here computes with a BLAS: its threads would be memory and nothing else.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    _import_early()
    sent = sys.stdin.buffer.read()
    if not sent:
        return 0  # the API process ended before it knew what to serve
    config = msgspec.json.decode(sent, type=EngineConfig)
    if config.parent_pid:
        die_with_parent(config.parent_pid)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s engine %(name)s: %(message)s")
    threads = config.threads or compute_threads()
    with EngineEndpoint(config.socket_folder) as endpoint:
        return _run(msgspec.structs.replace(config, threads=threads), endpoint, load)


def _import_early() -> None:
    """Import what a model needs, while the API process imports its own: its configuration comes when that is done."""
    import octavo_engine.worker.start

    with contextlib.suppress(ImportError):  # an installation without kernels says so when it is to load a model
        import octavo_engine.worker.backends.cpu  # noqa: F401


def _run(config: EngineConfig, endpoint: EngineEndpoint, load: Load | None) -> int:
    from octavo_engine.worker.executor import ExecutorError
    from octavo_engine.worker.load import load_model
    from octavo_engine.worker.sizing import StartError
    from octavo_engine.worker.start import serve

    def give_up(error: Exception) -> None:
        """The loop's own thread waits for a step that does not end: say so in its place, and end the process."""
        logger.error("The engine stops: %s", error)
        if isinstance(error, ExecutorError):
            endpoint.send(Failed(str(error)))
        elif not isinstance(error, PeerGone):
            endpoint.send(Failed(f"The engine stopped: {type(error).__name__}: {error}"))
        endpoint.close()
        exit_now(1)

    try:
        serve(config, endpoint, give_up, load or load_model)
    except PeerGone:
        logger.error("The API process takes no messages any more")
        return 1
    except ExecutorError as error:
        give_up(error)  # a thread of the executor's may wait for ever: it is not waited for
    except StartError as error:
        logger.error("%s", error)
        endpoint.send(Failed(str(error)))
        return 1
    except Exception as error:
        logger.exception("The engine stops")
        endpoint.send(Failed(f"The engine stopped: {type(error).__name__}: {error}"))
        return 1
    return 0


def exit_now(code: int) -> None:
    """End the process without joining threads: the runner's may hang in a step."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
