"""From a request's head and body to where it may go and as whom, or to the refusal. Pure; nothing is begun here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from octavo_engine import contract

from . import body, refusal
from .hold import Hold
from .limits import Limiter
from .models import Models, Service
from .prefix import digest_text
from .refusal import Refusal
from .tenants import ANYONE, Keys, salt
from .types import Wanted

ROUTED: Final = frozenset({contract.PATH_TOKENIZE, contract.PATH_DETOKENIZE})
ROUTED_UNDER: Final = "/v1/"
NEVER_ROUTED: Final = frozenset({contract.PATH_LOAD_ADAPTER, contract.PATH_UNLOAD_ADAPTER})
"""They change one engine; behind several, the answer would depend on chance."""
STRIPPED_PREFIXES: Final = ("x-octavo-", "x-gateway-", "x-envoy-")
"""What clients may not say: the picker and the engine believe these headers."""


class Incoming(NamedTuple):
    """A request as it came. `path` may carry a query."""

    request_id: str
    path: str
    authorization: str | None
    body: bytes


class Admitted(NamedTuple):
    """A request that may be sent to `service`, the one its split chose; `addressed` is the one it named.

    `model` is the name the engine knows, `text_bytes` the length of its canonical text.
    """

    addressed: Service
    service: Service
    model: str
    tenant: str
    wanted: Wanted
    text_bytes: int

    def headers(self) -> dict[str, str]:
        """Return the headers that the engine believes beside the gateway's credential."""
        return {
            contract.HEADER_MODEL: self.model,
            contract.HEADER_SALT: salt(self.tenant),
            contract.HEADER_REQUEST_ID: self.wanted.request_id,
        }


@dataclass(slots=True)
class Door:
    """All that one picker needs to judge requests. `informed` is False until the services were listed once."""

    models: Models = field(default_factory=lambda: Models(()))
    keys: dict[str, Keys] = field(default_factory=dict)
    limiters: dict[str, Limiter] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    informed: bool = False
    max_body_bytes: int = contract.MAX_BODY_BYTES

    def admit(self, incoming: Incoming, now: float) -> Admitted | Refusal:
        """Judge a request. What is admitted is charged: its end must be told to the limiter of `addressed`."""
        path = incoming.path.partition("?")[0]
        if not routed(path):
            return refusal.no_such_path(path)
        if len(incoming.body) > self.max_body_bytes:
            return refusal.too_large(self.max_body_bytes)
        asked = body.read(incoming.body)
        if isinstance(asked, Refusal):
            return asked
        if not self.informed:
            return refusal.not_informed()
        addressed = self.models.resolve(asked.model)
        if addressed is None:
            return refusal.no_such_model(asked.model)
        tenant = self._tenant(addressed, incoming.authorization)
        if isinstance(tenant, Refusal):
            return tenant
        limiter = self.limiters.setdefault(addressed.full_name, Limiter())
        refused = limiter.admit(incoming.request_id, tenant, now, len(asked.text), asked.max_tokens)
        if refused is not None:
            return refused
        chosen = self.models.arm(addressed, asked.key)
        prefix = digest_text(asked.text, salt(tenant))
        wanted = Wanted(incoming.request_id, prefix.digests, prefix.tail, asked.key, asked.streamed)
        return Admitted(addressed, chosen, chosen.model, tenant, wanted, len(asked.text))

    def nobody(self, admitted: Admitted, now: float, size: int, blocks: int, expected: bool) -> Refusal | None:
        """Let a request wait whose service has no routable endpoint, or refuse it; None if it waits.

        `expected` is whether one is starting, or will once the operator is woken. A suspended service wakes for nobody.
        """
        service = admitted.service
        if service.suspended or not expected:
            return refusal.no_replica()
        return self.holds.setdefault(service.full_name, Hold()).offer(admitted.wanted.request_id, now, size, blocks)

    def usable(self, authorization: str | None) -> tuple[str, ...] | Refusal:
        """Return the names of the models that a key may use, for `/v1/models`.

        Without a key, those that need none; 401 if that is none of them, or if the key given is nobody's.
        """
        if not self.informed:
            return refusal.not_informed()
        answers = {service: self._tenant(service, authorization) for service in self.models.services()}
        names = [
            name
            for service, tenant in answers.items()
            if not isinstance(tenant, Refusal)
            for name in self.models.names(service)
        ]
        refusals = [answer for answer in answers.values() if isinstance(answer, Refusal)]
        if refusals and (not names or (authorization and len(refusals) == sum(s.needs_key for s in answers))):
            return refusals[0]
        return tuple(sorted(names))

    def _tenant(self, service: Service, authorization: str | None) -> str | Refusal:
        if not service.needs_key:
            return ANYONE
        keys = self.keys.get(service.full_name)
        return refusal.wrong_key() if keys is None else keys.admit(authorization)


def routed(path: str) -> bool:
    """Return whether the gateway sends a path on. Health, metrics and administration stay inside."""
    if path in NEVER_ROUTED or "/../" in path or path.endswith("/..") or "//" in path or "%" in path:
        return False
    return path.startswith(ROUTED_UNDER) or path in ROUTED


def without_stripped(headers: Mapping[str, str]) -> list[str]:
    """Return the names of a client's headers that must be removed before the request goes on."""
    return [name for name in headers if name.lower().startswith(STRIPPED_PREFIXES)]
