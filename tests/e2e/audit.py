"""The API server's audit log: who wrote what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

READS = ("get", "list", "watch")


def position(log: Path) -> int:
    """Return where the log ends now."""
    return log.stat().st_size


def events(log: Path, since: int) -> list[dict[str, Any]]:
    """Return the events after byte `since`; a line that is still being written is left out."""
    with log.open() as lines:
        lines.seek(since)
        return [json.loads(line) for line in lines if line.endswith("\n")]


def writes(log: Path, since: int, user: str) -> list[str]:
    """Return what `user` wrote after byte `since`: verb, resource and URI."""
    return [
        f"{event['verb']} {event.get('objectRef', {}).get('resource', '')} {event['requestURI']}"
        for event in events(log, since)
        if event["user"]["username"] == user and event["verb"] not in READS
    ]
