"""Sizes as people write them: 4G, 512Mi, 1.5Gi."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?")


def parse_size(text: str) -> int:
    """Return the bytes of a size. Raises ValueError with the remedy."""
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2] or "")
    if match is None or unit is None:
        raise ValueError(f"'{text}' is no size: write a number with k, M, G, Ki, Mi or Gi, such as 4G or 512Mi.")
    number, _, fraction = match[1].partition(".")
    return int(number) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
