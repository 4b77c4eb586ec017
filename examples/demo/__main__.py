"""`python -m examples.demo up` and `down`."""

from __future__ import annotations

import sys

import typer
from tests.cluster.errors import ClusterError

from examples.demo import stage

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
def up() -> None:
    """Bring everything up, or find it running, and chat."""
    try:
        stage.up()
    except (ClusterError, stage.DemoError) as error:
        sys.exit(f"demo: {error}\nTry `make demo` again; `make demo-down` first starts it afresh.")
    except KeyboardInterrupt:
        sys.exit(f"demo: interrupted; {stage.remains()}")


@app.command()
def down() -> None:
    """Take everything down and leave nothing behind."""
    try:
        stage.down()
    except ClusterError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    app()
