"""Our finalizer: Kopf sets it and takes it back, save where Kopf does not serve the kind any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from octavo_engine import contract
from octavo_operator.kube.client import ApiError, Client
from octavo_operator.kube.resources import INFERENCE_SERVICES

FINALIZER: Final = f"{contract.API_GROUP}/operator"

_LOG: Final = logging.getLogger(__name__)


async def release_deleted(client: Client, namespaces: Iterable[str]) -> None:
    """Take our finalizer from every InferenceService that is being deleted; no `namespaces` means all of them.

    While a CRD is being deleted, discovery does not list `patch` for its kind, and Kopf does not serve a kind that it
    may not patch: the objects would wait for us, and the CRD for the objects. Children go by their owner references.
    """
    everywhere: tuple[str | None, ...] = (None,)
    for namespace in tuple(namespaces) or everywhere:
        for each in await client.list_all(INFERENCE_SERVICES, namespace):
            metadata = each["metadata"]
            before = metadata.get("finalizers") or []
            if not metadata.get("deletionTimestamp") or FINALIZER not in before:
                continue
            precondition = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            patch = {"metadata": {**precondition, "finalizers": [other for other in before if other != FINALIZER]}}
            _LOG.info("%s/%s: released; its kind is going", metadata["namespace"], metadata["name"])
            try:
                await client.merge(INFERENCE_SERVICES, metadata["namespace"], metadata["name"], patch)
            except ApiError as error:
                if error.status not in (404, 409):  # Gone, or changed: the next round sees which.
                    raise
