"""Where the API server is and who we are: the pod's service account, or a kubeconfig file."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIFETIME_SECONDS: Final = 60
"""A mounted token is read again after this long: the kubelet rotates it well before it expires."""


class Credentials:
    """An API server's address, its TLS context, and the headers of a request made now."""

    def __init__(
        self, server: str, context: ssl.SSLContext, namespace: str, token: str | None = None, file: Path | None = None
    ) -> None:
        """Keep what is given; `file` is a token that is read again as it rotates."""
        self.server = server.rstrip("/")
        self.context = context
        self.namespace = namespace
        self._token = token
        self._file = file
        self._read_at = float("-inf")

    def headers(self) -> dict[str, str]:
        """Return the authentication headers, empty with a client certificate."""
        if self._file is not None and time.monotonic() - self._read_at > _TOKEN_LIFETIME_SECONDS:
            self._token = self._file.read_text(encoding="utf-8").strip()
            self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


def load_credentials(kubeconfig: Path | None = None) -> Credentials:
    """Return the pod's own credentials, or those of `kubeconfig`, KUBECONFIG or ~/.kube/config.

    Raises `ValueError` with a sentence when there are none.
    """
    if kubeconfig is None and (_ACCOUNT / "token").exists():
        return _in_cluster()
    path = kubeconfig or Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.is_file():
        raise ValueError(f"no Kubernetes credentials: not in a pod, and {path} is no file; pass --kubeconfig")
    return _from_kubeconfig(path)


def _in_cluster() -> Credentials:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        context=ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt")),
        namespace=(_ACCOUNT / "namespace").read_text(encoding="utf-8").strip(),
        file=_ACCOUNT / "token",
    )


def _from_kubeconfig(path: Path) -> Credentials:
    document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    context = _named(document, "context", document.get("current-context"), path)
    cluster = _named(document, "cluster", context.get("cluster"), path)
    user = _named(document, "user", context.get("user"), path)
    if "exec" in user or "auth-provider" in user:
        raise ValueError(f"{path}: login plugins are not supported; use a token or a client certificate")
    return Credentials(
        server=cluster["server"],
        context=_tls(cluster, user, path.parent),
        namespace=context.get("namespace", "default"),
        token=user.get("token"),
        file=_beside(path.parent, user["tokenFile"]) if "tokenFile" in user else None,
    )


def _named(document: Mapping[str, Any], kind: str, name: str | None, path: Path) -> dict[str, Any]:
    for entry in document.get(f"{kind}s") or []:
        if entry["name"] == name:
            return dict(entry.get(kind) or {})
    raise ValueError(f"{path} has no {kind} named {name!r}; choose one with `kubectl config use-context`")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate", folder), _pem(user, "client-key", folder)
    if certificate and key:
        # OpenSSL loads a key from files only: a private folder that is gone when this returns.
        with tempfile.TemporaryDirectory(prefix="octavo-") as private:
            files = Path(private, "tls.crt"), Path(private, "tls.key")
            for file, content in zip(files, (certificate, key), strict=True):
                file.touch(mode=0o600)
                file.write_bytes(content)
            context.load_cert_chain(*map(str, files))
    return context


def _pem(entry: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    return _beside(folder, entry[key]).read_bytes() if entry.get(key) else None


def _beside(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()
