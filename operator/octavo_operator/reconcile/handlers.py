"""Kopf's handlers: thin. Everything they do is to start, wake and end the reconciler of a service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import kopf

from octavo_engine import contract
from octavo_operator import metrics, names
from octavo_operator.kube import resources
from octavo_operator.kube.credentials import Credentials
from octavo_operator.kube.session import WatchPulse, open_session
from octavo_operator.reconcile.finalizer import FINALIZER
from octavo_operator.reconcile.service import Reconciler, Tools, serve

ANNOTATION_PREFIX: Final = f"kopf.{contract.API_GROUP}"
"""Ours alone, like our finalizer: two Kopf operators in one cluster must not take each other's (kopf#664, #1107)."""
RETRY_SECONDS: Final = 15.0


class Crew:
    """The reconcilers at work, and what they share to be tidied when one of them goes."""

    def __init__(self, tools: Tools) -> None:
        """Nobody works yet."""
        self._tools = tools
        self._members: set[Reconciler] = set()

    @contextlib.contextmanager
    def member(self, namespace: str, name: str, uid: str) -> Iterator[Reconciler]:
        """Yield the reconciler of a service, as long as Kopf wants it."""
        reconciler = Reconciler(self._tools, namespace, name, uid)
        self._members.add(reconciler)
        metrics.SERVICES.set(len(self._members))
        try:
            yield reconciler
        finally:
            self._members.discard(reconciler)
            metrics.SERVICES.set(len(self._members))
            reconciler.forget()
            self._tools.collector.forget(frozenset().union(*(each.pods for each in self._members)))


class Wakers:
    """The alarm of every service's reconciler, by namespace and the label its children carry."""

    def __init__(self) -> None:
        """Nobody sleeps yet."""
        self._events: dict[tuple[str, str], set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def alarm(self, namespace: str, label: str) -> Iterator[asyncio.Event]:
        """Yield an event that `ring` sets."""
        event = asyncio.Event()
        sleepers = self._events.setdefault((namespace, label), set())
        sleepers.add(event)
        try:
            yield event
        finally:
            sleepers.discard(event)
            if not sleepers:
                self._events.pop((namespace, label), None)

    def ring(self, namespace: str | None, label: str | None) -> None:
        """Wake whoever reconciles the service with that label."""
        for event in self._events.get((namespace or "", label or ""), ()):
            event.set()


def build_registry(
    tools: Tools,
    credentials: Credentials,
    fence: Callable[[], None],
    pulse: WatchPulse,
    started: Callable[[], None],
) -> kopf.OperatorRegistry:
    """Return Kopf's handlers; `started` runs when Kopf has set itself up."""
    registry = kopf.OperatorRegistry()
    wakers, crew = Wakers(), Crew(tools)
    ours = (contract.API_GROUP, contract.API_VERSION, contract.PLURAL)

    @kopf.on.startup(registry=registry, id="configure")
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings)
        # Kopf yields once while its tasks start, and sets its signal handlers after that.
        asyncio.get_running_loop().call_soon(started)

    @kopf.on.login(registry=registry, id="login")
    async def login(**_: Any) -> kopf.AiohttpSession:
        session = open_session(credentials, fence, pulse)
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=session)

    @kopf.daemon(*ours, registry=registry, id="reconcile", cancellation_timeout=5.0, backoff=RETRY_SECONDS)
    async def reconcile(*, namespace: str | None, name: str, uid: str, stopped: kopf.DaemonStopped, **_: Any) -> None:
        assert namespace is not None
        with wakers.alarm(namespace, names.derived(name)) as wake, crew.member(namespace, name, uid) as reconciler:
            await _until(stopped, serve(reconciler, wake))

    @kopf.on.event(*ours, registry=registry, id="resource-changed")
    async def resource_changed(*, namespace: str | None, name: str, **_: Any) -> None:
        wakers.ring(namespace, names.derived(name))

    for child in (*resources.CHILDREN, resources.PODS):

        @kopf.on.event(child.group, child.version, child.plural, registry=registry, id=f"{child.plural}-changed")
        async def child_changed(*, namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
            wakers.ring(namespace, labels.get(contract.LABEL_SERVICE))

    return registry


async def _until(stopped: kopf.DaemonStopped, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until Kopf wants the daemon to end; a failure of `work` is Kopf's to retry."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def _configure(settings: kopf.OperatorSettings) -> None:
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=ANNOTATION_PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=ANNOTATION_PREFIX)
    settings.posting.enabled = False
    # Without these a watch can stay open and deaf for hours (kopf#1120, #1276); WatchPulse counts on them.
    settings.watching.server_timeout = WatchPulse.WATCH_SECONDS
    settings.watching.client_timeout = WatchPulse.WATCH_SECONDS + 10
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.enforce_retry_after = True
    # Namespaces and CRDs are not watched: a namespaced installation may not, and ours do not change.
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = 20
    settings.background.cancellation_polling = 1
    for child in (*resources.CHILDREN, resources.PODS):
        # The API server filters: an unlabelled pod of a big cluster never reaches this process.
        settings.watching.label_selectors[child.group, child.version, child.plural] = contract.LABEL_SERVICE
