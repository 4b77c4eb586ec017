"""What the API process is told at its start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo_engine import contract
from octavo_engine.server.tool_calls.formats import Setting


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The API process's own settings; the engine's are `ipc.config.EngineConfig`.

    Durations in seconds. `max_queue_requests` and `max_queue_tokens` are the engine's bounds, kept here too.
    """

    served_names: tuple[str, ...]
    host: str = "0.0.0.0"
    port: int = contract.PORT_HTTP
    admin_port: int = contract.PORT_ADMIN
    api_keys_file: Path | None = None
    gateway_credential_file: Path | None = None
    drain_propagation: float = contract.DRAIN_PROPAGATION_SECONDS
    drain_timeout: float = contract.DEFAULT_DRAIN_TIMEOUT_SECONDS
    health_timeout: float = contract.HEALTH_TIMEOUT_SECONDS
    engine_restarts: int = contract.ENGINE_RESTARTS
    tool_call_parser: Setting = "auto"
    adapters: tuple[tuple[str, str], ...] = ()
    """LoRA adapters to load before the server is ready: name, folder."""
    adapters_file: Path | None = None
    max_adapters: int = contract.MAX_ADAPTERS
    max_queue_requests: int = 1024
    max_queue_tokens: int = 1_048_576
