"""Pure: from a spec and what is observed to the children that should exist. No I/O."""

from octavo_operator.plan.children import (
    Children,
    Manifest,
    Observed,
    Owner,
    address,
    plan,
    rendered_hash,
    selector_text,
)
from octavo_operator.plan.settings import EngineDefaults, kept_defaults

__all__ = [
    "Children",
    "EngineDefaults",
    "Manifest",
    "Observed",
    "Owner",
    "address",
    "kept_defaults",
    "plan",
    "rendered_hash",
    "selector_text",
]
