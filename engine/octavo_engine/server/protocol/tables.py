"""Which fields each endpoint knows and what becomes of them: data, tested against the running server.

Three treatments. *Honoured*: it has its effect. *Refused*: 400 naming it, unless the value asks for nothing. *Ignored*:
it could not change an answer here. Names in no table are extras of other servers and are tolerated.
"""

from __future__ import annotations

from typing import Any, Final

from octavo_engine import contract
from octavo_engine.server.protocol.constraints import (
    read_choice,
    read_grammar,
    read_regex,
    read_response_format,
    read_schema,
    read_structured_outputs,
    read_text,
)
from octavo_engine.server.protocol.fields import (
    NOT_ASKED,
    Described,
    Field,
    Schema,
    Table,
    Unreadable,
    boolean,
    check_members,
    described,
    honoured,
    ignored,
    integer,
    list_of,
    number,
    refused,
    string,
    table,
)
from octavo_engine.server.protocol.messages import read_messages
from octavo_engine.server.protocol.other_servers import ELSEWHERE, OF_OTHER_SERVERS
from octavo_engine.server.protocol.responses.fields import (
    LOGPROBS,
    check_obfuscation,
    read_include,
    read_metadata,
    read_stream_options,
)
from octavo_engine.server.protocol.responses.items import read_input
from octavo_engine.server.protocol.tools import (
    read_flat_tool_choice,
    read_flat_tools,
    read_tool_choice,
    read_tools,
)

MAX_INT32: Final = 2**31 - 1
MIN_REPETITION_PENALTY: Final = 0.01
"""Logits are divided by it: what is hardly above 0 makes them infinite."""
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 256
MAX_LOGIT_BIAS: Final = 1024
MAX_CACHE_SALT_CHARACTERS: Final = 256

TOKEN_ID: Final[Schema] = {"$ref": "#/components/schemas/TokenId"}
"""How large an id may be depends on the model: whoever writes a document defines this."""
_STOP_STRING: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_TOKEN_IDS: Final[Schema] = {"type": "array", "items": TOKEN_ID, "minItems": 1}


@described(anyOf=[_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": contract.MAX_STOP_STRINGS}])
def _stop(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise Unreadable("must be a string or a list of strings")
    if len(strings) > contract.MAX_STOP_STRINGS:
        raise Unreadable(f"may have at most {contract.MAX_STOP_STRINGS} strings")
    if not all(0 < len(item) <= MAX_STOP_CHARACTERS for item in strings):
        raise Unreadable(f"must have strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(strings))


@described(
    type="object",
    maxProperties=MAX_LOGIT_BIAS,
    propertyNames={"pattern": "^[0-9]{1,10}$"},
    additionalProperties={"type": "number", "minimum": -100, "maximum": 100},
)
def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise Unreadable("must be an object from token ids to numbers")
    if len(value) > MAX_LOGIT_BIAS:
        raise Unreadable(f"may have at most {MAX_LOGIT_BIAS} entries")
    read_bias = number(-100, 100)
    bias = {}
    for key, item in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise Unreadable("must have token ids as keys")
        if int(key) in bias:
            raise Unreadable("names a token that another key names already", f".{key}")
        try:
            bias[int(key)] = read_bias(item)
        except Unreadable as error:
            raise Unreadable(error.message, f".{key}") from None
    return bias


@described(
    type="object",
    properties={
        "include_usage": {"type": ["boolean", "null"]},
        "continuous_usage_stats": {"enum": [False, None]},
        "include_obfuscation": {"enum": [False, None]},
    },
    additionalProperties=NOT_ASKED,
)
def _stream_options(value: Any) -> bool:
    """Read the object; what counts is `include_usage`."""
    if not isinstance(value, dict):
        raise Unreadable("must be an object")
    check_members(value, ("include_usage", "continuous_usage_stats", "include_obfuscation"))
    check_obfuscation(value)
    if value.get("continuous_usage_stats") not in (None, False):
        raise Unreadable("is not supported yet", ".continuous_usage_stats")
    include = value.get("include_usage")
    if include is not None and type(include) is not bool:
        raise Unreadable("must be true or false", ".include_usage")
    return bool(include)


def _texts_or_ids(most: int) -> Schema:
    item: Schema = {"anyOf": [{"type": "string"}, _TOKEN_IDS]}
    return {
        "anyOf": [{"type": "string"}, _TOKEN_IDS, {"type": "array", "items": item, "minItems": 1, "maxItems": most}]
    }


@described(**_texts_or_ids(contract.MAX_PROMPTS))
def _prompt(value: Any) -> list[str | list[int]]:
    """Read a prompt in any of its four shapes: text, texts, token ids, lists of token ids."""
    return _read_texts_or_ids(value, contract.MAX_PROMPTS, "prompts")


@described(**_texts_or_ids(contract.MAX_EMBEDDING_INPUTS))
def _input(value: Any) -> list[str | list[int]]:
    """Read what is to be embedded, in the same four shapes, none of it empty."""
    inputs = _read_texts_or_ids(value, contract.MAX_EMBEDDING_INPUTS, "inputs")
    if "" in inputs:
        raise Unreadable("must not be empty", f"[{inputs.index('')}]" if isinstance(value, list) else "")
    return inputs


def _read_texts_or_ids(value: Any, most: int, what: str) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise Unreadable("must be a string, a list of strings, a list of token ids, or a list of such lists, not empty")
    if all(type(item) is int for item in value):
        return [value]
    if len(value) > most:
        raise Unreadable(f"may have at most {most} {what}")
    for index, item in enumerate(value):
        if isinstance(item, list) and not item:
            raise Unreadable("must not be empty", f"[{index}]")
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise Unreadable("must be a string or a list of token ids", f"[{index}]")
    return value


@described(enum=["float", "base64"])
def _encoding_format(value: Any) -> str:
    if value not in ("float", "base64"):
        raise Unreadable("must be 'float' or 'base64'")
    return str(value)


@described(type="string", minLength=1, maxLength=MAX_CACHE_SALT_CHARACTERS)
def _salt(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CACHE_SALT_CHARACTERS:
        raise Unreadable(f"must be a string of 1 to {MAX_CACHE_SALT_CHARACTERS} characters")
    return value


@described(anyOf=[{"type": "integer", "minimum": 0, "maximum": contract.MAX_LOGPROBS}, {"const": False}])
def _alternatives(value: Any) -> int:
    """Read how many alternatives to tell; false asks for nothing, as in some clients."""
    return -1 if value is False else integer(0, contract.MAX_LOGPROBS)(value)


_token_id = Described(integer(0, MAX_INT32), TOKEN_ID)

_SAMPLING: Final[tuple[Field, ...]] = (
    honoured("temperature", number(0, 2), 1.0),
    honoured("top_p", number(0, 1, above=True), 1.0),
    honoured("top_k", integer(-1, 10**18), 0),
    honoured("min_p", number(0, 1), 0.0),
    honoured("presence_penalty", number(-2, 2), 0.0),
    honoured("frequency_penalty", number(-2, 2), 0.0),
    honoured("repetition_penalty", number(MIN_REPETITION_PENALTY, 10), 1.0),
    honoured("logit_bias", _logit_bias, {}),
    honoured("allowed_token_ids", list_of(_token_id, 1, MAX_INT32), []),
    honoured("seed", integer(-(2**63), 2**63 - 1)),
)

_CHAT_ONLY: Final = "is a field of chat: use /v1/chat/completions"


def _other_names(limit: str) -> tuple[Field, ...]:
    """Return the names that other servers have for `limit`, the bound on new tokens."""
    names = ("n_predict", "num_predict", "max_new_tokens", "max_length", "max_output_tokens")
    return tuple(refused(name, why=f"is not supported here; use '{limit}'") for name in names)


_GENERATION: Final[tuple[Field, ...]] = (
    honoured("model", string),
    *_SAMPLING,
    honoured("min_tokens", integer(0, MAX_INT32), 0),
    honoured("stop", _stop, ()),
    honoured("stop_token_ids", list_of(_token_id, 0, MAX_STOP_TOKEN_IDS), []),
    honoured("ignore_eos", boolean, False),
    honoured("include_stop_str_in_output", boolean, False),
    honoured("stream", boolean, False),
    honoured("priority", integer(-(2**31), MAX_INT32), 0),
    honoured("cache_salt", _salt, ""),
    honoured("structured_outputs", read_structured_outputs),
    honoured("guided_json", read_schema),
    honoured("guided_regex", read_regex),
    honoured("guided_choice", read_choice),
    honoured("guided_grammar", read_grammar),
    refused("functions", [], why="is not supported here; use 'tools'"),
    refused("function_call", "none", "auto", why="is not supported here; use 'tool_choice'"),
    refused("use_beam_search", False),
    refused("length_penalty", 1.0, 1),
    refused("bad_words", []),
    refused("truncate_prompt_tokens"),
    refused("skip_special_tokens", True),
    refused("spaces_between_special_tokens", True),
    refused("return_token_ids", False),
    refused("return_tokens_as_token_ids", False),
    refused("logits_processors", []),
    *OF_OTHER_SERVERS,
    ignored("user", "no user is told from another; 'cache_salt' keeps prefixes apart"),
    ignored("store", "nothing is stored"),
    ignored("service_tier", "there is one tier; use priority"),
    ignored("safety_identifier", "no policy acts on it"),
    ignored("prompt_cache_key", "equal prefixes are shared without it"),
    ignored("prompt_cache_retention", "blocks stay cached as long as there is room"),
    ignored("request_id", "the answer's id is made here"),
)

_CHOICES: Final[tuple[Field, ...]] = (
    *_GENERATION,
    honoured("max_tokens", integer(1, MAX_INT32)),
    honoured("max_completion_tokens", integer(1, MAX_INT32)),
    *_other_names("max_tokens"),
    honoured("n", integer(1, contract.MAX_CHOICES), 1),
    honoured("stream_options", _stream_options),
    honoured("response_format", read_response_format),
    ignored("metadata", "nothing is stored"),
)

_CONVERSATION: Final[tuple[Field, ...]] = (
    honoured("parallel_tool_calls", boolean, True),
    refused("best_of", 1),
    refused("echo", False),
    refused("modalities", ["text"]),
    refused("audio"),
    refused("prediction"),
    refused("web_search_options"),
    refused("verbosity", "medium"),
    refused("chat_template"),
    refused("chat_template_kwargs", {}),
    refused("documents", []),
    refused("add_generation_prompt", True),
    refused("continue_final_message", False),
    refused("add_special_tokens", False),
    refused("mm_processor_kwargs", {}),
)

COMPLETIONS: Final[Table] = table(
    *_CHOICES,
    honoured("prompt", _prompt),
    honoured("add_special_tokens", boolean, True),
    honoured("max_tokens", integer(0, MAX_INT32)),
    honoured("max_completion_tokens", integer(0, MAX_INT32)),
    honoured("best_of", integer(1, contract.MAX_CHOICES)),
    honoured("logprobs", _alternatives, -1),
    honoured("prompt_logprobs", _alternatives, -1),
    honoured("echo", boolean, False),
    refused("suffix", ""),
    refused("prompt_embeds"),
    refused("tools", [], why=_CHAT_ONLY),
    refused("tool_choice", "none", "auto", why=_CHAT_ONLY),
)

CHAT: Final[Table] = table(
    *_CHOICES,
    *_CONVERSATION,
    honoured("messages", read_messages),
    honoured("tools", read_tools, []),
    honoured("tool_choice", read_tool_choice, "auto"),
    honoured("logprobs", boolean, False),
    honoured("top_logprobs", integer(0, contract.MAX_LOGPROBS), 0),
    honoured("prompt_logprobs", _alternatives, -1),
)

_STATELESS: Final = "is not supported: nothing is stored here, so send the whole conversation as 'input'"

RESPONSES: Final[Table] = table(
    *_GENERATION,
    *_CONVERSATION,
    *_other_names("max_output_tokens"),
    honoured("input", read_input),
    honoured("instructions", string),
    honoured("max_output_tokens", integer(1, MAX_INT32)),
    honoured("text", read_text),
    honoured("tools", read_flat_tools, []),
    honoured("tool_choice", read_flat_tool_choice, "auto"),
    honoured("include", read_include),
    honoured("top_logprobs", integer(0, contract.MAX_LOGPROBS), 0),
    honoured("stream_options", read_stream_options),
    honoured("metadata", read_metadata, {}),
    refused("previous_response_id", why=_STATELESS),
    refused("conversation", why=_STATELESS),
    refused("prompt", why="is not supported: no prompts are stored here, so send 'instructions' and 'input'"),
    refused("background", False, why="is not supported: nothing is stored here; wait for the answer, or stream it"),
    refused("background_options", {}, why="is not supported: nothing runs in the background here"),
    refused("truncation", "disabled", why="is not supported: leave items out of 'input' yourself"),
    refused("context_management", [], why="is not supported: leave items out of 'input' yourself"),
    refused("reasoning", {}, {"effort": "none"}, why="is not supported: this server tells no reasoning apart"),
    refused("max_tool_calls", why="is not supported: this server calls no tools itself"),
    refused("moderation", why="is not supported: this server moderates nothing"),
    refused("image", {}, why="is not supported: this server reads no images"),
    refused("access_programs", {}, why="is not supported here"),
    refused("messages", why="is a field of chat: use 'input'"),
    refused("max_tokens", why="is a field of chat: use 'max_output_tokens'"),
    refused("max_completion_tokens", why="is a field of chat: use 'max_output_tokens'"),
    refused("response_format", why="is a field of chat: use 'text'"),
    refused("logprobs", False, why=f"is a field of chat: use 'include' with '{LOGPROBS}'"),
    refused("prompt_logprobs", False, why="is not told here: use /v1/completions"),
    refused("n", 1, why="is a field of chat: a response is one answer, so ask again for another"),
    ignored("prompt_cache_options", "equal prefixes are shared without them"),
)

EMBEDDINGS: Final[Table] = table(
    honoured("model", string),
    honoured("input", _input),
    honoured("encoding_format", _encoding_format, "float"),
    honoured("dimensions", integer(1, MAX_INT32)),
    honoured("add_special_tokens", boolean, True),
    honoured("priority", integer(-(2**31), MAX_INT32), 0),
    honoured("cache_salt", _salt, ""),
    # What would make it another vector, or another shape of it, on some other server.
    refused("messages", why="is not supported here; use 'input'"),
    refused("prompt", why="is not supported here; use 'input'"),
    refused("truncate_prompt_tokens"),
    refused("truncate", False, why="is not supported here: an input that is too long is refused"),
    refused("normalize", True, why="is not supported here: every vector has length 1"),
    refused("embd_normalize", 2, why="is not supported here: every vector has length 1"),
    refused("embed_dtype", "float32", why=ELSEWHERE),
    refused("endianness", "native", "little", why=ELSEWHERE),
    refused("instruction", "", why="is not supported here; write it into 'input'"),
    refused("prompt_name", why="is not supported here; write the prompt into 'input'"),
    refused("input_type", why=ELSEWHERE),
    refused("task", why=ELSEWHERE),
    refused("late_chunking", False, why=ELSEWHERE),
    refused("mm_processor_kwargs", {}),
    refused("options", {}, why=ELSEWHERE),
    ignored("user", "no user is told from another; 'cache_salt' keeps prefixes apart"),
    ignored("request_id", "the answer's id is made here"),
)

TOKENIZE: Final[Table] = table(
    honoured("model", string),
    honoured("prompt", string),
    honoured("messages", read_messages),
    honoured("add_special_tokens", boolean),
    honoured("add_generation_prompt", boolean, True),
    honoured("return_token_strs", boolean, False),
    honoured("tools", read_tools, []),
    refused("chat_template"),
    refused("chat_template_kwargs", {}),
    refused("continue_final_message", False),
)

DETOKENIZE: Final[Table] = table(
    honoured("model", string),
    honoured("tokens", list_of(_token_id, 0, MAX_INT32)),
)

TABLES: Final[dict[str, Table]] = {
    contract.PATH_COMPLETIONS: COMPLETIONS,
    contract.PATH_CHAT_COMPLETIONS: CHAT,
    contract.PATH_RESPONSES: RESPONSES,
    contract.PATH_EMBEDDINGS: EMBEDDINGS,
    contract.PATH_TOKENIZE: TOKENIZE,
    contract.PATH_DETOKENIZE: DETOKENIZE,
}
"""Of every route that reads fields, by its path."""
