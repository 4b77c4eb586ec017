"""The API key that a client shows, from a file: never from an argument, which other users of the machine can read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import typer

VARIABLE: Final = "OPENAI_API_KEY"


def read_api_key(file: Path | None) -> str:
    """Return the key that a file holds, or for None that of the variable OPENAI_API_KEY; "" if that is not set.

    Raises BadParameter with a sentence, which never quotes what was read.
    """
    if file is None:
        key = os.environ.get(VARIABLE, "").strip()
        return _sendable(key, f"The variable {VARIABLE} holds", VARIABLE) if key else ""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise _refusal(f"{file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _refusal(f"{file} is no text") from None
    return _sendable(text.strip(), f"{file} holds", "--api-key-file")


def _sendable(key: str, holds: str, option: str) -> str:
    """Return a key that can stand in a header: visible ASCII characters, without a space."""
    if not key:
        raise _refusal(f"{holds} nothing", option)
    if len(key.splitlines()) > 1:
        raise _refusal(f"{holds} more than one line", option)
    if not all("!" <= character <= "~" for character in key):
        raise _refusal(f"{holds} a space or a character that is not ASCII, which no API key has", option)
    return key


def _refusal(what: str, option: str = "--api-key-file") -> typer.BadParameter:
    remedy = "set it to one API key" if option == VARIABLE else "give a file that holds one API key"
    return typer.BadParameter(f"{what}: {remedy}.", param_hint=f"'{option}'")
