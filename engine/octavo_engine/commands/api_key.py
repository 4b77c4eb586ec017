"""The API key that a client shows, from a file: never from an argument, which other users of the machine can read."""

from __future__ import annotations

from pathlib import Path

import typer


def read_api_key(file: Path) -> str:
    """Return the key that a file holds. Raises BadParameter with a sentence."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{file} cannot be read ({error}): give a file that holds one API key.", param_hint="'--api-key-file'"
        ) from None
