"""A few GETs on the API server without a client library: `up` polls, and a kubectl process per poll would cost more."""

import http.client
import json
import ssl
from typing import Any

from .errors import ClusterError
from .layout import Layout


class ApiError(ClusterError):
    """The API server answered, but not with what was asked for."""


class Api:
    def __init__(self, layout: Layout, port: int) -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self.context.load_cert_chain(layout.pki / "kubelet-client.crt", layout.pki / "kubelet-client.key")

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ApiError(f"GET {path} answered {response.status}: {body[:300].decode(errors='replace')}")
        return body

    def json(self, path: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get(path))
        return document


def condition(resource: dict[str, Any], kind: str) -> bool:
    """Whether the resource's status condition `kind` is True."""
    conditions = resource.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)
