"""The fields that only `/v1/responses` has, and those of them that its answer repeats."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo_engine.server.protocol.fields import NOT_ASKED, Unreadable, check_members, described

LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDABLE: Final = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
)
"""All but the first are parts of things that no answer here has: to ask for them changes nothing."""
_MAX_PAIRS: Final = 16
_MAX_KEY_CHARACTERS: Final = 64
_MAX_VALUE_CHARACTERS: Final = 512


@described(type="array", items={"enum": list(_INCLUDABLE)})
def read_include(value: Any) -> bool:
    """Read what an answer is to tell beside itself; return whether log-probabilities are among that."""
    if not isinstance(value, list):
        raise Unreadable("must be a list")
    for index, item in enumerate(value):
        if item not in _INCLUDABLE:
            raise Unreadable(f"must be one of {', '.join(_INCLUDABLE)}", f"[{index}]")
    return LOGPROBS in value


@described(
    type="object",
    maxProperties=_MAX_PAIRS,
    propertyNames={"maxLength": _MAX_KEY_CHARACTERS},
    additionalProperties={"type": "string", "maxLength": _MAX_VALUE_CHARACTERS},
)
def read_metadata(value: Any) -> dict[str, str]:
    """Read the pairs that the answer repeats."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object of strings")
    if len(value) > _MAX_PAIRS:
        raise Unreadable(f"may have at most {_MAX_PAIRS} pairs")
    for key, item in value.items():
        if len(key) > _MAX_KEY_CHARACTERS:
            raise Unreadable(f"may have keys of at most {_MAX_KEY_CHARACTERS} characters")
        if not isinstance(item, str) or len(item) > _MAX_VALUE_CHARACTERS:
            raise Unreadable(f"must be a string of at most {_MAX_VALUE_CHARACTERS} characters", f".{key}")
    return value


@described(type="object", properties={"include_obfuscation": {"enum": [None, False]}}, additionalProperties=NOT_ASKED)
def read_stream_options(value: Any) -> bool:
    """Read the object, in which nothing can be asked for; return false."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object")
    check_members(value, ("include_obfuscation",))
    check_obfuscation(value)
    return False


def check_obfuscation(options: dict[str, Any]) -> None:
    """Raise Unreadable for stream options that ask for noise behind each chunk."""
    obfuscated = options.get("include_obfuscation")
    if obfuscated is None:
        return
    if type(obfuscated) is not bool:
        raise Unreadable("must be true or false", ".include_obfuscation")
    if obfuscated:
        raise Unreadable("is not supported: leave it out", ".include_obfuscation")


def repeated(values: dict[str, Any], body: dict[str, Any]) -> bytes:
    """Return, as one JSON object, the members of a response that say what was asked for and what is never done here.

    values: the honoured fields. body: the request that they were read from.
    """
    choice = values["tool_choice"]
    told = {
        "background": False,
        "instructions": values["instructions"],
        "max_output_tokens": values["max_output_tokens"],
        "max_tool_calls": None,
        "metadata": values["metadata"],
        "parallel_tool_calls": values["parallel_tool_calls"],
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": values["temperature"],
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": choice if isinstance(choice, str) else {"type": "function", **choice},
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in values["tools"]],
        "top_logprobs": values["top_logprobs"],
        "top_p": values["top_p"],
        "truncation": "disabled",
    }
    return msgspec.json.encode(told)
