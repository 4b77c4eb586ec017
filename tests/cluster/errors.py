"""The one error of this package: a sentence that says what is wrong and what to do."""

from pathlib import Path


class ClusterError(Exception):
    """Shown to a person as it is, without a traceback."""


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message that names it."""
    if not log.exists():
        return f"{log} does not exist"
    text = log.read_text(errors="replace").splitlines()[-lines:]
    return f"the end of {log}:\n" + "\n".join(f"  {line[:300]}" for line in text)
