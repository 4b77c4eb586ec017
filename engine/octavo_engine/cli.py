"""The `octavo` command. Commands import what they need when they run, so that `--help` is instant.

Other parts of the distribution add commands through the entry-point group `octavo.commands`: a function that takes the
Typer application.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

app = typer.Typer(
    name="octavo", help="Serve language models from sixteen-token pages of KV cache.", no_args_is_help=True
)


@app.callback()
def _root() -> None:
    """Serve language models from sixteen-token pages of KV cache."""


def main() -> None:
    """Run the command line."""
    for entry in entry_points(group="octavo.commands"):
        entry.load()(app)
    app()
