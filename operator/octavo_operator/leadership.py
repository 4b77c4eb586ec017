"""Leadership by a `coordination.k8s.io` Lease, renewed in a thread with a connection of its own.

A blocked event loop must not lose the lease, and a lost lease must stop the loop: so renewal shares nothing with it.
The holder stops writing RENEW_DEADLINE after its last successful renewal, counted on the monotonic clock from before
that request was sent; others take over DURATION after they saw it change, counted on theirs. The gap between the two
is longer than any request may last (`kube.client.TIMEOUT_SECONDS`), so two processes never write at once, whatever
their wall clocks say.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from octavo_operator import metrics
from octavo_operator.kube.credentials import Credentials

DURATION_SECONDS: Final = 15
RENEW_DEADLINE_SECONDS: Final = 9.5
RETRY_SECONDS: Final = 2.0
_REQUEST_TIMEOUT_SECONDS: Final = 4.0

_LOG: Final = logging.getLogger(__name__)
_FAILURES: Final = (OSError, http.client.HTTPException, ValueError)


class LeaseLostError(RuntimeError):
    """A write was about to happen without a valid lease."""


class Leadership:
    """One candidate for one Lease. `start`, wait for `acquired`, call `check` before writes, `stop` at the end."""

    def __init__(
        self, credentials: Credentials, namespace: str, name: str, identity: str, on_lost: Callable[[], None]
    ) -> None:
        """Prepare; nothing is asked before `start`. `on_lost` runs in the thread when a held lease was lost."""
        self.identity = identity
        self.acquired = threading.Event()
        self._credentials = credentials
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._held_until = float("-inf")
        self._seen: tuple[object, float] = (None, 0.0)
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def remaining(self) -> float:
        """Return the seconds for which writing is still safe; negative when it is not."""
        return self._held_until - time.monotonic()

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lease is held and has time left."""
        if self.remaining() <= 0:
            raise LeaseLostError("the lease is not held any more: this process must not write")

    def stop(self) -> None:
        """Give the lease back, so that a successor need not wait, and end the thread."""
        self._stopping.set()
        self._thread.join(timeout=2 * _REQUEST_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._attempt()
            if self.acquired.is_set() and self.remaining() <= 0:
                metrics.LEADER.set(0)
                _LOG.critical("the lease %s was lost: another operator may act now", self._name)
                self._on_lost()
                return
            self._stopping.wait(RETRY_SECONDS * random.uniform(0.9, 1.1))
        if self.acquired.is_set():
            self._release()

    def _attempt(self) -> None:
        asked_at = time.monotonic()
        try:
            won = self._take()
        except _FAILURES as error:
            _LOG.warning("the lease %s could not be renewed: %s", self._name, error)
            return
        if won:
            self._held_until = asked_at + RENEW_DEADLINE_SECONDS
            metrics.LEADER.set(1)
            self.acquired.set()
        else:
            self._held_until = float("-inf")

    def _take(self) -> bool:
        """Create, renew or take over the lease; return whether it is ours now, raise `OSError` when that is open."""
        status, lease = self._request("GET", f"{self._collection}/{self._name}")
        if status == 404:
            self._write("POST", self._collection, self._body({}, transitions=0))
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder and holder != self.identity and not self._expired(spec):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self.identity)
        body = self._body(lease["metadata"], transitions, spec if holder == self.identity else None)
        self._write("PUT", f"{self._collection}/{self._name}", body)
        return True

    def _write(self, method: str, path: str, body: dict[str, Any]) -> None:
        status, answer = self._request(method, path, body)
        if status not in (200, 201):
            raise OSError(f"{method} {path}: {status} {answer.get('message')}")

    def _expired(self, spec: dict[str, Any]) -> bool:
        """Whether another's lease has not changed for its whole duration on our own clock."""
        mark = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if mark != self._seen[0]:
            self._seen = (mark, time.monotonic())
        return time.monotonic() - self._seen[1] > int(spec.get("leaseDurationSeconds") or DURATION_SECONDS)

    def _release(self) -> None:
        try:
            status, lease = self._request("GET", f"{self._collection}/{self._name}")
            if status == 200 and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                self._request("PUT", f"{self._collection}/{self._name}", lease)
        except _FAILURES as error:
            _LOG.warning("the lease %s was not given back, a successor waits until it expires: %s", self._name, error)
        self._held_until = float("-inf")
        metrics.LEADER.set(0)

    def _body(self, metadata: dict[str, Any], transitions: int, held: dict[str, Any] | None = None) -> dict[str, Any]:
        kept = {key: metadata[key] for key in ("resourceVersion", "uid", "labels", "annotations") if key in metadata}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, **kept},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": held["acquireTime"] if held and "acquireTime" in held else _now(),
                "renewTime": _now(),
                "leaseTransitions": transitions,
            },
        }

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return (status, answer) of one request; statuses other than success, 404 and 409 raise `OSError`."""
        address = urlsplit(self._credentials.server)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=_REQUEST_TIMEOUT_SECONDS, context=self._credentials.context
        )
        try:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json", **self._credentials.headers()}
            connection.request(method, address.path + path, data, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 400 and response.status not in (404, 409):
            raise OSError(f"{method} {path}: {response.status} {text[:300].decode(errors='replace')}")
        return response.status, json.loads(text)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
