"""API keys and whose they are. A Secret's key is the tenant, its value the API key."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from . import refusal
from .refusal import Refusal

ANYONE: Final = "anyone"
"""The tenant of a service without keys: no Secret's key can be mistaken for it, because then there is no Secret."""
_BEARER: Final = "bearer "


class Keys:
    """The keys of one InferenceService. Only their digests are kept, and every one is compared, found or not."""

    def __init__(self, secret: Mapping[str, bytes]) -> None:
        """Take a Secret's decoded `data`. Values that no header can carry are left out and named in `faults`."""
        self._digests: dict[str, bytes] = {}
        self.faults: list[str] = []
        for tenant, value in sorted(secret.items()):
            key = value.strip()
            if not key or not all(0x21 <= byte <= 0x7E for byte in key):
                self.faults.append(
                    f"The key of tenant {tenant!r} is empty or holds a space or a character that is not ASCII, which "
                    "no header can carry; write another."
                )
            elif (digest := sha256(key).digest()) in self._digests.values():
                self.faults.append(f"The key of tenant {tenant!r} is another tenant's too; write another.")
            else:
                self._digests[tenant] = digest

    def tenant(self, key: str) -> str | None:
        """Return whose key it is, in a time that does not depend on which of them it is."""
        given = sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for tenant, digest in self._digests.items():
            if hmac.compare_digest(given, digest):
                found = tenant
        return found

    def admit(self, authorization: str | None) -> str | Refusal:
        """Return the tenant that an `Authorization` header proves, or the refusal."""
        if not authorization or authorization[: len(_BEARER)].lower() != _BEARER:
            return refusal.no_key()
        tenant = self.tenant(authorization[len(_BEARER) :].strip())
        return refusal.wrong_key() if tenant is None else tenant


def salt(tenant: str) -> str:
    """Return the cache salt of a tenant: no tenant's name can make it another's, or that of a direct caller."""
    return f"tenant:{tenant}"
