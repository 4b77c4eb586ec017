"""Which format a model writes its calls in: a pure function of its chat template, or what the server was told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from octavo_engine.server.template import reads_tools
from octavo_engine.server.tool_calls import hermes, llama3, mistral
from octavo_engine.server.tool_calls.scanner import Scanner

Format = Literal["hermes", "llama3", "mistral"]
Setting = Literal["auto", "hermes", "llama3", "mistral", "none"]

SCANNERS: Final[dict[Format, type[Scanner]]] = {
    "hermes": hermes.HermesScanner,
    "llama3": llama3.Llama3Scanner,
    "mistral": mistral.MistralScanner,
}
TAGS: Final[dict[Format, tuple[str, ...]]] = {
    "hermes": (hermes.OPEN, hermes.CLOSE),
    "llama3": (llama3.TAG,),
    "mistral": (mistral.CALLS, mistral.ARGS, mistral.CALL_ID),
}
"""What calls are marked with. Where a tag is a special token it is shown to the scanner all the same."""
_OTHERS: Final = ("<function=", "<arg_key>", "<invoke", "<tool_calls>")
"""Templates with these write some of the tags too, but something else than a JSON object stands behind them."""
_ARGUMENTS: Final = re.compile(r"""\\?["'](?:arguments|parameters)\\?["']""")


class ToolUse(msgspec.Struct, frozen=True):
    """How one request's answers are read. `names`: its functions; without `parallel` one call is told at the most."""

    format: Format
    names: tuple[str, ...]
    parallel: bool = True


def special_tags(form: Format, ids: Mapping[str, int]) -> dict[str, int]:
    """Return those of a format's tags that are special tokens of the model, by the ids of its special tokens."""
    return {tag: ids[tag] for tag in TAGS[form] if tag in ids}


@lru_cache(maxsize=8)
def format_of(template: str | None, setting: Setting = "auto") -> Format | None:
    """Return the format of the calls of a model with this chat template, None if it makes none that are known here.

    A template that does not read `tools` cannot tell the model of any, whatever `setting` says.
    """
    if template is None or setting == "none" or not reads_tools(template):
        return None
    if setting != "auto":
        return setting
    if mistral.CALLS in template:
        return "mistral"
    if any(other in template for other in _OTHERS) or not _ARGUMENTS.search(template):
        return None
    if hermes.OPEN in template:
        return "hermes"
    if llama3.TAG in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3"
    return None
