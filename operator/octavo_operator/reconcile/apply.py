"""Server-side apply of the children: read first, never overwrite what is not ours, write only what changed."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from octavo_engine import contract
from octavo_operator.kube.client import ApiError, Client, Object
from octavo_operator.kube.resources import Resource, resource_of
from octavo_operator.plan.children import Children, Manifest
from octavo_operator.reconcile.conditions import RESOURCE_CONFLICT, Trouble

_LOG: Final = logging.getLogger(__name__)


class Applied(NamedTuple):
    """What became of the children: the live Deployment, and the first thing that stood in the way."""

    deployment: Object | None
    trouble: Trouble | None


class Applier:
    """Applies the children of one owner."""

    def __init__(self, client: Client, owner_uid: str) -> None:
        """Apply on behalf of the owner with `owner_uid`."""
        self._client = client
        self._owner_uid = owner_uid
        self._verified: dict[tuple[str, str], str] = {}

    def forget(self) -> None:
        """Read every child again at the next pass: an event came, or enough time has passed."""
        self._verified.clear()

    async def apply(self, children: Children, live: Object | None) -> Applied:
        """Apply every child; `live` is the Deployment as just read.

        The Deployment is tried dry first: a pod template that the API server refuses must change nothing else. A
        child that belongs to somebody else is left alone and reported, and the others are still applied.
        """
        deployment, resource = children.deployment, resource_of(children.deployment)
        if self._differs(deployment, live) and not self._foreign(live):
            try:
                await self._write(resource, deployment, live, dry_run=True)
            except ApiError as error:
                if error.status not in (400, 422):
                    raise
                return Applied(live, Trouble("InvalidPodTemplate", str(error)))
        conflicts = [each for child in children.supporting if (each := await self._child(child)) is not None]
        if self._foreign(live):
            conflicts.append(self._conflict(deployment))
        elif self._differs(deployment, live):
            live = await self._write(resource, deployment, live)
        return Applied(live, conflicts[0] if conflicts else None)

    async def _child(self, manifest: Manifest) -> Trouble | None:
        """Apply one supporting child, unless it was seen to be as rendered and nothing has happened since."""
        resource, metadata = resource_of(manifest), manifest["metadata"]
        key, rendered = (manifest["kind"], metadata["name"]), metadata["annotations"][contract.ANNOTATION_RENDERED_HASH]
        if self._verified.get(key) == rendered:
            return None
        live = await self._client.get(resource, metadata["namespace"], metadata["name"])
        if self._foreign(live):
            return self._conflict(manifest)
        if self._differs(manifest, live):
            try:
                await self._write(resource, manifest, live)
            except ApiError as error:
                if error.status != 409:
                    raise
                return self._conflict(manifest)
        self._verified[key] = rendered
        return None

    async def _write(
        self, resource: Resource, manifest: Manifest, live: Object | None, *, dry_run: bool = False
    ) -> Object:
        """Apply: an absent object without force; our own with force, and with its UID as a precondition."""
        metadata = manifest["metadata"]
        if not dry_run:
            verb = "creating" if live is None else "updating"
            _LOG.info("%s/%s: %s %s", metadata["namespace"], metadata["name"], verb, manifest["kind"])
        if live is None:
            return await self._client.apply(resource, manifest, force=False, dry_run=dry_run)
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}
        return await self._client.apply(resource, body, force=True, dry_run=dry_run)

    def _foreign(self, live: Object | None) -> bool:
        """Whether the object exists and is not controlled by our owner."""
        if live is None:
            return False
        owners = live["metadata"].get("ownerReferences") or []
        return not any(each.get("controller") and each["uid"] == self._owner_uid for each in owners)

    @staticmethod
    def _differs(manifest: Manifest, live: Object | None) -> bool:
        """Whether what was rendered differs from what was last applied, or the live replicas from the wanted ones."""
        if live is None:
            return True
        annotation = contract.ANNOTATION_RENDERED_HASH
        applied = (live["metadata"].get("annotations") or {}).get(annotation)
        wanted = manifest.get("spec", {}).get("replicas")
        return bool(applied != manifest["metadata"]["annotations"][annotation]) or (
            wanted is not None and wanted != live["spec"].get("replicas")
        )

    @staticmethod
    def _conflict(manifest: Manifest) -> Trouble:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        return Trouble(
            RESOURCE_CONFLICT,
            f"{kind} {name} exists and does not belong to this service: delete or rename it, it is left untouched",
        )
