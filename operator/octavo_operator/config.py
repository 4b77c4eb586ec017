"""The operator's configuration: flags and environment, checked once."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field

from octavo_engine import contract
from octavo_operator.plan import EngineDefaults


def _identity() -> str:
    """Name this process: the pod's name and something that no restart repeats."""
    return f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True)
class Config:
    """What `octavo operator` was told. `namespaces` empty: the whole cluster."""

    engine: EngineDefaults
    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    lease_name: str = contract.FIELD_MANAGER
    identity: str = field(default_factory=_identity)
    host: str = "0.0.0.0"
    metrics_port: int = contract.PORT_OPERATOR_METRICS
    health_port: int = contract.PORT_OPERATOR_HEALTH
