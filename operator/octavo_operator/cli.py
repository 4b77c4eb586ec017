"""The operator's commands, added to `octavo`."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the operator's commands to the `octavo` application."""
    del app
