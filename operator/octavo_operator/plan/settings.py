"""What an installation sets for every service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineDefaults:
    """Defaults of the engine pods, from the operator's flags.

    `image` is used where a spec names none. `libraries_claim` names a PersistentVolumeClaim, in the service's
    namespace, with Python libraries too big for the image; it is mounted read-only and appended to PYTHONPATH.
    """

    image: str
    image_pull_policy: str = "IfNotPresent"
    libraries_claim: str | None = None
