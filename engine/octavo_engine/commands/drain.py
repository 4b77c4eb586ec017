"""`octavo drain`: let a server on this machine finish what it began; the pod's preStop hook."""

from __future__ import annotations

import http.client
import sys
import time
from typing import Final

from octavo_engine import contract

_CALL_SECONDS: Final = 5.0
_LOOK_EVERY_SECONDS: Final = 0.25


def drain(admin_port: int, wait: bool, timeout: float) -> int:
    """Ask for the drain and, with `wait`, return when the server has gone. Returns the exit code."""
    try:
        status = _call(admin_port, "POST", contract.PATH_DRAIN)
    except OSError as error:
        print(f"octavo drain: no server answers on 127.0.0.1 port {admin_port} ({error}).", file=sys.stderr)
        return 1
    if status != 202:
        print(f"octavo drain: the server answered {status}.", file=sys.stderr)
        return 1
    if not wait:
        print("draining")
        return 0
    return _wait_until_gone(admin_port, timeout)


def _wait_until_gone(admin_port: int, timeout: float) -> int:
    """Look until nobody listens any more: the server is another process's child, so it cannot be waited for."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            _call(admin_port, "GET", contract.PATH_HEALTH)
        except ConnectionError:
            print("drained")
            return 0
        time.sleep(_LOOK_EVERY_SECONDS)
    print(f"octavo drain: the server is still there after {timeout:.0f} s.", file=sys.stderr)
    return 1


def _call(port: int, method: str, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_CALL_SECONDS)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise ConnectionResetError(str(error)) from error
    finally:
        connection.close()
