"""The loop that every peer's process runs: read a workload, run it, say how long it took.

usage: python drive.py with_openvino '{"model": "PATH", …}'

The second argument is handed to the module's `start(settings)`, which loads the model and returns
`(versions, run)`. Then, in JSON, one a line:

    out  {"event": "ready", "versions": {"openvino-genai": "…"}, "seconds": 3.4}
    in   {"requests": [{"prompt": [1, 2, 3], "max_tokens": 128}, …]}
    out  {"event": "result", "seconds": 1.2, "output_tokens": 128, "first_token_seconds": 0.1, "decode_tokens": 127}
    out  {"event": "error", "detail": "…"}    instead, and the process ends

`first_token_seconds` is null where the peer does not tell it; `decode_tokens` are those computed after it.

When its input ends during a workload, whoever asked is gone or has given up: the process ends with all that it started.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, TextIO


def main() -> None:
    """Serve workloads until standard input ends."""
    # What the peer prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Held while there is work: what the peer loads and runs cannot be interrupted from here.
    busy = threading.Lock()
    threading.Thread(target=end_with_input, args=(busy,), daemon=True).start()
    try:
        with busy:
            begun = time.perf_counter()
            versions, run = importlib.import_module(sys.argv[1]).start(json.loads(sys.argv[2]))
        # Said when the work is over: who has the answer may hang up at once, and what was printed is still to be kept.
        say(answers, event="ready", versions=versions, seconds=time.perf_counter() - begun)
        for line in sys.stdin:
            with busy:
                found = run(json.loads(line)["requests"])
            say(answers, event="result", **found)
    except Exception as error:
        say(answers, event="error", detail=f"{type(error).__name__}: {error}")
        raise


def end_with_input(busy: threading.Lock) -> None:
    """Kill this process's group if standard input ends during work; between workloads the loop ends by itself."""
    hangup = select.poll()
    hangup.register(0, select.POLLHUP)
    while not any(event & select.POLLHUP for _, event in hangup.poll()):
        pass
    if busy.locked():
        os.killpg(os.getpgrp(), signal.SIGKILL)


def say(answers: TextIO, **fields: Any) -> None:
    """Write one JSON line."""
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
