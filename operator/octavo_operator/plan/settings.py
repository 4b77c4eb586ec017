"""What an installation sets for every service."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from octavo_engine import contract
from octavo_operator.api.spec import InferenceServiceSpec

ANNOTATION_DEFAULTS: Final = f"{contract.API_GROUP}/engine-defaults"
"""On the Deployment: the defaults it was rendered with. A service that waits for its turn keeps all of them."""


@dataclass(frozen=True)
class EngineDefaults:
    """Defaults of the engine pods, from the operator's flags.

    `image` is used where a spec names none.
    """

    image: str
    image_pull_policy: str = "IfNotPresent"

    def record(self) -> dict[str, str]:
        """Return the annotation that `kept_defaults` reads back."""
        return {ANNOTATION_DEFAULTS: json.dumps(asdict(self), sort_keys=True)}


def kept_defaults(
    deployment: dict[str, Any], spec: InferenceServiceSpec, defaults: EngineDefaults
) -> EngineDefaults | None:
    """Return the defaults that `deployment` was rendered with, `None` when it does not say.

    Equal to `defaults` when those would change nothing that `spec` leaves to them.
    """
    try:
        kept = EngineDefaults(**json.loads(deployment["metadata"]["annotations"][ANNOTATION_DEFAULTS]))
    except (KeyError, ValueError, TypeError):
        return None
    return replace(kept, image=defaults.image) if spec.engine.image else kept
