"""Names and labels of everything the operator makes, from one place."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from octavo_engine import contract

SLUG_LENGTH: Final = 40
HASH_LENGTH: Final = 8
_DNS_1035_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1035_LENGTH: Final = 63

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_REVISION: Final = f"{contract.API_GROUP}/revision"
"""On every pod: which rendered pod template it came from. In `status.selector`, never in an immutable selector."""

COMPONENT_ENGINE: Final = "engine"
ENGINE_CONTAINER: Final = "engine"


def short_hash(text: str) -> str:
    """Return 8 hexadecimal digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def derived(name: str) -> str:
    """Return the name of the children of the InferenceService `name`: a slug of ≤ 40 characters and 8 hex of a hash.

    Every legal resource name works (253 characters, dots, a leading digit): the result is a DNS-1035 label of ≤ 49
    characters, short enough for the suffixes that Kubernetes adds to pods, and two names never share one.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())
    if not slug[:1].isalpha():
        slug = f"s-{slug}"
    return f"{slug[:SLUG_LENGTH].strip('-')}-{short_hash(name)}"


def service(name: str) -> str:
    """Return the Service's name: the resource's own where it is a legal Service name, else the derived one."""
    legal = len(name) <= _DNS_1035_LENGTH and _DNS_1035_LABEL.fullmatch(name)
    return name if legal else derived(name)


def adapters(name: str) -> str:
    """Return the name of the ConfigMap that says which adapters the engines of `name` serve."""
    return f"{derived(name)}-adapters"


def selector(name: str) -> dict[str, str]:
    """Return the labels that select the engine pods of `name`: minimal, because a selector can never change."""
    return {contract.LABEL_SERVICE: derived(name), LABEL_COMPONENT: COMPONENT_ENGINE}


def labels(name: str) -> dict[str, str]:
    """Return the labels of every child of `name`."""
    return {
        **selector(name),
        LABEL_NAME: "octavo",
        LABEL_INSTANCE: derived(name),
        LABEL_PART_OF: "octavo",
        LABEL_MANAGED_BY: contract.FIELD_MANAGER,
    }
