"""What a grammar may cost, the same for the process that checks it and the one that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_LEXER_STATES: Final = 50_000
"""At 1 to 2 kB each: what one sequence's lexer may grow to."""


def parser_limits() -> LLParserLimits:
    """Return llguidance's limits. Beyond them a grammar is refused, or the sequence that follows it fails."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def one_sentence(message: str) -> str:
    """Return llguidance's message without its drawings: the first paragraph, on one line, of bounded length."""
    text = message.split("\n<", 1)[0].split("\nerror:", 1)
    # A regular expression's fault stands under a picture of where it is.
    said = text[1] if len(text) == 2 else text[0]
    where = text[0].split("\n", 1)[0].split(' "', 1)[0].rstrip(": ") + ": " if len(text) == 2 else ""
    line = " ".join(f"{where}{said}".replace("panic: ", "", 1).split())
    line = line.split(" 1 | ", 1)[0].strip()
    return (line if len(line) <= 300 else line[:300] + "…").rstrip(".")
