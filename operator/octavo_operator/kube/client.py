"""The asynchronous client: reads, server-side apply, merge patches, status."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from octavo_engine import contract
from octavo_operator.kube.credentials import Credentials
from octavo_operator.kube.resources import Resource
from octavo_operator.kube.session import open_session

Object = dict[str, Any]

TIMEOUT_SECONDS: Final = 5.0
"""Of one request: shorter than what a lease has left when its holder stops writing (`leadership.py`)."""
_APPLY: Final = "application/apply-patch+yaml"
_UNTYPED: Final = ("failed to create typed patch object", "failed to convert new object")
"""How the API server refuses an applied object with unknown fields or malformed quantities: as an internal error."""
NAMESPACE_TERMINATING: Final = "NamespaceTerminating"
_MERGE: Final = "application/merge-patch+json"


class ApiError(Exception):
    """An answer of the API server that is no success: `status` is HTTP's, `reason` and the text are its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Keep the parts of the API server's Status object."""
        super().__init__(message)
        self.status = status
        self.reason = reason


class Client:
    """One session with the API server. `fence` is called before every write and raises when we may not write."""

    def __init__(self, credentials: Credentials, fence: Callable[[], None]) -> None:
        """Open a session; `close` ends it."""
        self._server = credentials.server
        self._session = open_session(credentials, fence, timeout=TIMEOUT_SECONDS)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()

    async def verbs(self, resource: Resource) -> list[str]:
        """Return what the API server lets anybody do with this kind: nothing without its CRD, less while that goes."""
        try:
            found = await self._request("GET", f"/apis/{resource.group}/{resource.version}")
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return next((list(each["verbs"]) for each in found["resources"] if each["name"] == resource.plural), [])

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return an object, or `None` when there is none."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(self, resource: Resource, namespace: str, labels: Mapping[str, str]) -> list[Object]:
        """Return the objects that carry all of `labels`."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = await self._request("GET", resource.path(namespace), params={"labelSelector": selector})
        return list(found["items"])

    async def list_all(self, resource: Resource, namespace: str | None) -> list[Object]:
        """Return every object of a namespace, or of the cluster."""
        return list((await self._request("GET", resource.path(namespace)))["items"])

    async def apply(self, resource: Resource, manifest: Object, *, force: bool, dry_run: bool = False) -> Object:
        """Apply a manifest server-side as the operator's field manager; unknown fields are refused."""
        metadata = manifest["metadata"]
        params = {
            "fieldManager": contract.FIELD_MANAGER,
            "force": str(force).lower(),
            "fieldValidation": "Strict",
            **({"dryRun": "All"} if dry_run else {}),
        }
        path = resource.path(metadata["namespace"], metadata["name"])
        return await self._request("PATCH", path, params=params, body=manifest, content_type=_APPLY)

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        """Merge `patch` into an object or one of its subresources."""
        path = resource.path(namespace, name, subresource)
        params = {"fieldManager": contract.FIELD_MANAGER}
        return await self._request("PATCH", path, params=params, body=patch, content_type=_MERGE)

    async def replace_status(self, resource: Resource, new: Object) -> Object:
        """Replace the status of an object; 409 when the object has changed since it was read."""
        metadata = new["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], "status")
        params = {"fieldManager": contract.FIELD_MANAGER}
        return await self._request("PUT", path, params=params, body=new, content_type="application/json")

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(
            method, self._server + path, params=params, data=data, headers=headers
        ) as response:
            text = await response.text()
        if response.status >= 400:
            raise _error(response.status, text)
        answer: Object = json.loads(text)
        return answer


def _error(status: int, text: str) -> ApiError:
    try:
        answer = json.loads(text)
    except ValueError:
        return ApiError(status, "Unknown", text[:500])
    if not isinstance(answer, dict):
        return ApiError(status, "Unknown", text[:500])
    message = str(answer.get("message") or text[:500])
    if status == 500 and message.startswith(_UNTYPED):
        return ApiError(422, "Invalid", message)
    causes = (answer.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == NAMESPACE_TERMINATING for cause in causes):
        return ApiError(status, NAMESPACE_TERMINATING, message)
    return ApiError(status, str(answer.get("reason") or "Unknown"), message)
