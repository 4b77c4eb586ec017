"""Which InferenceService a model's name means, and which of two takes a request of a split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from typing import NamedTuple


class Arm(NamedTuple):
    """One side of a split: the name of an InferenceService in the same namespace, and its weight."""

    name: str
    weight: int


@dataclass(frozen=True, slots=True)
class Service:
    """What the gateway knows of an InferenceService. `created` is its creation time in RFC 3339: it sorts as text."""

    namespace: str
    name: str
    uid: str
    created: str
    served_name: str = ""
    aliases: tuple[str, ...] = ()
    split: tuple[Arm, ...] = ()
    needs_key: bool = False
    suspended: bool = False

    @property
    def full_name(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def model(self) -> str:
        """Return the name that the engine knows its model by."""
        return self.served_name or self.name

    def claims(self) -> tuple[str, ...]:
        """Return the bare names it answers to."""
        return (self.model, *self.aliases)


class Conflict(NamedTuple):
    """A bare name that `loser` (namespace/name) does not get: `RouterReady=False reason=ModelNameConflict`."""

    name: str
    owner: str
    loser: str

    def message(self) -> str:
        """Return the sentence for the condition."""
        return (
            f"The model name {self.name!r} belongs to {self.owner}, which is older; use {self.loser!r}, or give "
            "another servedName or alias."
        )


class Models:
    """Names to services. A `namespace/name` is always the service; a bare name is its oldest claimant's."""

    def __init__(self, services: Iterable[Service]) -> None:
        """Resolve all claims, oldest first; equals in age by UID."""
        self.conflicts: list[Conflict] = []
        self._by_full_name: dict[str, Service] = {}
        self._by_claim: dict[str, Service] = {}
        for service in sorted(services, key=lambda s: (s.created, s.uid)):
            self._by_full_name[service.full_name] = service
            for name in dict.fromkeys(service.claims()):
                owner = self._by_claim.setdefault(name, service)
                if owner is not service:
                    self.conflicts.append(Conflict(name, owner.full_name, service.full_name))

    def __len__(self) -> int:
        """Return the number of services."""
        return len(self._by_full_name)

    def services(self) -> Sequence[Service]:
        """Return all services, oldest first."""
        return tuple(self._by_full_name.values())

    def resolve(self, model: str) -> Service | None:
        """Return the service that a request's `model` means."""
        return self._by_full_name.get(model) or self._by_claim.get(model)

    def names(self, service: Service) -> tuple[str, ...]:
        """Return the names under which a service can be reached, the full one last."""
        owned = tuple(name for name in dict.fromkeys(service.claims()) if self._by_claim.get(name) is service)
        return (*owned, service.full_name)

    def arm(self, service: Service, key: bytes) -> Service:
        """Return the service that takes a conversation of `service`: itself, or another side of its split.

        Weights are shares of 100, and what they leave is the service's own; if it is named among them, or they are more
        than 100, they are shares of their sum. A side that does not exist leaves its share to the service itself: a
        canary that was deleted must not fail requests. A side's own split is not followed.
        """
        weights = {arm.name: arm.weight for arm in service.split if arm.weight > 0}
        weights.setdefault(service.name, max(0, 100 - sum(weights.values())))
        name = choose(weights, key)
        return self._by_full_name.get(f"{service.namespace}/{name}", service)


def choose(weights: dict[str, int], key: bytes) -> str:
    """Return a name of `weights` for `key`: always the same, each name as often as its weight says.

    Weighted highest random weight: raising one weight from 0 to 10 of 100 moves a tenth of the keys, all to that name.
    """

    def cost(name: str) -> float:
        digest = blake2b(key, key=name.encode()[:64], digest_size=8).digest()
        return -log((int.from_bytes(digest) + 1) / 2**64) / weights[name]

    return min((name for name in sorted(weights) if weights[name] > 0), key=cost)
