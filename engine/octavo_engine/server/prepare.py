"""From a request's bytes to token ids and parameters: parse, check, render, tokenise. Pure; runs in its own process."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from octavo_engine import contract
from octavo_engine.ipc.messages import Embeddings, SamplingParams, StopRule
from octavo_engine.server.asked import Generating, read_asked
from octavo_engine.server.errors import ApiError, context_length, invalid, not_found
from octavo_engine.server.grammar import serialised
from octavo_engine.server.grammar_check import GrammarChecker, GrammarRefused
from octavo_engine.server.jobs import Answer, EmbeddingForm, Job, JobResult, Limits, Prepared, Refusal
from octavo_engine.server.protocol import tables
from octavo_engine.server.protocol.constraints import Constraint, the_constraint
from octavo_engine.server.protocol.fields import Table, read_fields
from octavo_engine.server.protocol.json_body import parse_object
from octavo_engine.server.protocol.messages import Conversation, text_bytes
from octavo_engine.server.protocol.responses.fields import repeated
from octavo_engine.server.protocol.responses.items import with_instructions
from octavo_engine.server.tokenizer import EncodingError, TemplateError, TextModel
from octavo_engine.server.tool_calls.formats import ToolUse, special_tags
from octavo_engine.server.tool_calls.request import calls_constraint, read_tool_use, told_tools

_TABLES: Final[dict[Generating, Table]] = {
    "completions": tables.COMPLETIONS,
    "chat": tables.CHAT,
    "responses": tables.RESPONSES,
}


def prepare(job: Job, text_model: TextModel, grammars: GrammarChecker | None = None) -> JobResult:
    """Do one job; every refusal comes back as a value. `grammars` checks what texts must be like."""
    try:
        body = parse_object(job.body)
        if job.route == "tokenize":
            return _tokenize(read_fields(tables.TOKENIZE, body), job, text_model)
        if job.route == "detokenize":
            return _detokenize(read_fields(tables.DETOKENIZE, body), job, text_model)
        if job.route == "embeddings":
            return _embedding(read_fields(tables.EMBEDDINGS, body), body, job, text_model)
        return _generation(job.route, body, job, text_model, grammars or GrammarChecker())
    except ApiError as error:
        return Refusal(error.status, error.message, error.kind, error.param, error.code)


# --- Generation -------------------------------------------------------------------------------------------------
def _generation(
    route: Generating, body: dict[str, Any], job: Job, text_model: TextModel, grammars: GrammarChecker
) -> Prepared:
    limits, values = job.limits, read_fields(_TABLES[route], body)
    model = _model(values["model"], job)
    if values["stream_options"] is not None and not values["stream"]:
        raise invalid("'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value")
    asked = read_asked(route, values)
    max_tokens = asked.max_tokens
    if max_tokens is not None and values["min_tokens"] > max_tokens:
        raise invalid(f"'min_tokens' must not be greater than '{asked.max_name}'.", "min_tokens", "invalid_value")
    only_echo = max_tokens == 0
    if only_echo and not asked.echo:
        raise invalid(f"'{asked.max_name}' must be at least 1, or 0 with 'echo'.", asked.max_name, "invalid_value")
    if asked.prompt_logprobs >= 0 and values["stream"]:
        raise invalid("'prompt_logprobs' is not told in a stream.", param="prompt_logprobs", code="invalid_value")
    _check_token_ids(values, limits)
    tool_use: ToolUse | None = None
    if route == "completions":
        prompts = _text_prompts("prompt", values, body, limits, text_model)
    else:
        tool_use = read_tool_use(values, text_model.tool_template_source, limits.tool_call_parser)
        prompts = [_chat_prompt(_conversation(route, values, body), values, limits, text_model, tool_use)]
    if len(prompts) * asked.generated > contract.MAX_PROMPTS:
        raise invalid(f"'n' times the number of prompts may be at most {contract.MAX_PROMPTS}.", "n", "invalid_value")
    # A vocabulary may be smaller than what is asked for: a record's size is the same in both processes.
    logprobs = min(asked.logprobs, limits.vocab_size)
    prompt_logprobs = min(asked.prompt_logprobs, limits.vocab_size)
    longest = max(map(len, prompts))
    if max_tokens is None:
        max_tokens = limits.max_model_len - longest
    grammar = _grammar(values, tool_use, text_model, grammars)
    return Prepared(
        model=model,
        prompts=_packed(prompts),
        sampling=_sampling(
            values, limits, logprobs=max(logprobs, 0 if asked.generated > asked.n else -1), grammar=grammar
        ),
        stop=StopRule(
            max_tokens=max(1, max_tokens),
            min_tokens=values["min_tokens"],
            stop_token_ids=tuple(sorted(set(values["stop_token_ids"]))),
            ignore_eos=values["ignore_eos"],
        ),
        n=asked.generated,
        stop_strings=values["stop"],
        include_stop=values["include_stop_str_in_output"],
        stream=values["stream"],
        include_usage=bool(values["stream_options"]),
        priority=values["priority"],
        cache_salt=values["cache_salt"],
        best=asked.n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=asked.echo,
        only_echo=only_echo,
        tool_use=tool_use,
        adapter=model if model in limits.adapters else "",
        constrained_by=_constrained_by(values, tool_use) if grammar else "allowed_token_ids",
        repeated=repeated(values, body) if route == "responses" else b"",
    )


def _packed(prompts: Sequence[Sequence[int]]) -> tuple[bytes, ...]:
    return tuple(struct.pack(f"<{len(prompt)}i", *prompt) for prompt in prompts)


def _model(name: str | None, job: Job) -> str:
    """Return the model's name as it is answered. Raises the 404 of a name that is not served."""
    served = job.limits.served_names
    if name in job.limits.adapters:
        return name
    if job.model or name is None:
        return job.model or served[0]
    if name not in served:
        shown = name if len(name) <= 80 else name[:80] + "…"
        raise not_found(f"The model '{shown}' does not exist here.", param="model", code="model_not_found")
    return name


def _check_token_ids(values: dict[str, Any], limits: Limits) -> None:
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        if any(token >= limits.vocab_size for token in values[name]):
            raise invalid(
                f"'{name}' names a token outside the vocabulary: ids go from 0 to {limits.vocab_size - 1}.",
                param=name,
                code="invalid_value",
            )


def _grammar(values: dict[str, Any], tool_use: ToolUse | None, text_model: TextModel, grammars: GrammarChecker) -> str:
    """Return what the text must be like, "" for anything. Raises the 400 of what cannot be compiled."""
    named = the_constraint(values)
    if tool_use is not None:
        if named is not None:
            raise invalid(
                f"'{named[0]}' cannot be used beside 'tools', whose calls it would forbid: leave one of them out, or "
                "give 'tool_choice': \"none\".",
                named[0],
                "invalid_value",
            )
        return _calls_grammar(values, tool_use, text_model, grammars)
    if named is None:
        return ""
    return _checked(*named, grammars)


def _constrained_by(values: dict[str, Any], tool_use: ToolUse | None) -> str:
    named = None if tool_use is not None else the_constraint(values)
    return "tools" if named is None else named[0] + named[1].path


def _calls_grammar(values: dict[str, Any], use: ToolUse, text_model: TextModel, grammars: GrammarChecker) -> str:
    constraint = calls_constraint(values, use)
    if constraint is None:
        return ""
    # Checked with tags as characters, since the checker knows no model's special tokens.
    checked = _checked("tools", constraint, grammars)
    special = special_tags(use.format, text_model.special_names)
    held = calls_constraint(values, use, special) if special else None
    return checked if held is None else serialised(held)


def _checked(name: str, constraint: Constraint, grammars: GrammarChecker) -> str:
    try:
        return grammars.check(constraint)
    except GrammarRefused as error:
        raise invalid(f"'{name}{constraint.path}' {error}.", name + constraint.path, "invalid_value") from None


def _sampling(values: dict[str, Any], limits: Limits, logprobs: int, grammar: str) -> SamplingParams:
    seed = values["seed"]
    top_k = values["top_k"]
    return SamplingParams(
        # Without a seed one is drawn here and kept, so that a preempted sequence resumes with the same draws. The
        # engine counts seeds as unsigned: the two's complement keeps all 64 bits.
        seed=(secrets.randbits(64) if seed is None else seed) % 2**64,
        temperature=values["temperature"],
        top_p=values["top_p"],
        top_k=0 if top_k < 0 or top_k >= limits.vocab_size else top_k,
        min_p=values["min_p"],
        presence_penalty=values["presence_penalty"],
        frequency_penalty=values["frequency_penalty"],
        repetition_penalty=values["repetition_penalty"],
        logit_bias=values["logit_bias"],
        allowed_token_ids=tuple(sorted(set(values["allowed_token_ids"]))),
        logprobs=logprobs,
        grammar=grammar,
    )


def _check_bytes(text_bytes: int, limits: Limits, text_model: TextModel, param: str, room: int = 1) -> None:
    """Refuse before tokenising a text that cannot fit however its tokens fall; `room` is for what is generated."""
    at_least = -(-text_bytes // text_model.max_token_bytes)
    if at_least + room > limits.max_model_len:
        raise context_length(limits.max_model_len, at_least, param, counted=False, generates=room > 0)


def _check_fits(tokens: int, limits: Limits, param: str, room: int = 1) -> None:
    if tokens == 0:
        raise invalid(f"'{param}' is empty: give at least one token.", param=param, code="invalid_value")
    if tokens + room > limits.max_model_len:
        raise context_length(limits.max_model_len, tokens, param, generates=room > 0)
    if tokens + room > limits.pool_tokens:
        raise invalid(
            f"A prompt of {tokens} tokens can never fit: the KV cache holds {limits.pool_tokens} tokens. Shorten it, "
            "or serve with more --kv-cache-memory.",
            param=param,
            code="context_length_exceeded",
        )


def _text_prompts(
    name: str, values: dict[str, Any], body: dict[str, Any], limits: Limits, text_model: TextModel, room: int = 1
) -> list[Sequence[int]]:
    """Return the ids of the prompts in the field `name`, each with `room` for tokens to come."""
    prompts = values[name]
    if prompts is None:
        raise _missing(name, body)
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_bytes(len(prompt.encode()), limits, text_model, name, room)
        else:
            _check_fits(len(prompt), limits, name, room)
            if not 0 <= min(prompt) <= max(prompt) < limits.vocab_size:
                raise invalid(
                    f"'{name}' has a token id outside the vocabulary: ids go from 0 to {limits.vocab_size - 1}.",
                    param=name,
                    code="invalid_value",
                )
    ids: list[Sequence[int]] = []
    for prompt in prompts:
        tokens = _encode(prompt, values["add_special_tokens"], text_model) if isinstance(prompt, str) else prompt
        _check_fits(len(tokens), limits, name, room)
        ids.append(tokens)
    return ids


def _encode(text: str, add_special_tokens: bool, text_model: TextModel) -> list[int]:
    return text_model.encode_prompt(text) if add_special_tokens else text_model.encode_user(text)


def _conversation(route: Generating, values: dict[str, Any], body: dict[str, Any]) -> Conversation:
    if route == "chat":
        if values["messages"] is None:
            raise _missing("messages", body)
        return Conversation("messages", values["messages"])
    if values["input"] is None:
        raise _missing("input", body)
    return with_instructions(values["input"], values["instructions"])


def _chat_prompt(
    chat: Conversation, values: dict[str, Any], limits: Limits, text_model: TextModel, tool_use: ToolUse | None
) -> Sequence[int]:
    _check_bytes(text_bytes(chat.messages), limits, text_model, chat.field)
    ids = _render(chat, True, text_model, told_tools(values["tools"]) if tool_use else None)
    _check_fits(len(ids), limits, chat.field)
    return ids


def _missing(name: str, body: dict[str, Any]) -> ApiError:
    what = "must not be null" if name in body else "is missing"
    return invalid(f"'{name}' {what}.", param=name, code="missing_required_parameter")


def _render(
    chat: Conversation, add_generation_prompt: bool, text_model: TextModel, tools: list[Any] | None
) -> Sequence[int]:
    try:
        return text_model.encode_chat(chat.messages, add_generation_prompt=add_generation_prompt, tools=tools)
    except TemplateError as error:
        where = chat.located(error.param)
        reason = str(error).replace(error.param, where) if error.param != "messages" else str(error)
        raise invalid(f"The chat template refused the messages: {reason}", where, "invalid_value") from None
    except EncodingError as error:
        raise invalid(str(error), chat.field, "invalid_value") from None


# --- Embeddings --------------------------------------------------------------------------------------------------
def _embedding(values: dict[str, Any], body: dict[str, Any], job: Job, text_model: TextModel) -> Prepared:
    model, limits = _model(values["model"], job), job.limits
    if limits.embeddings.refusal:
        raise invalid(limits.embeddings.refusal, param="model", code="unsupported_model")
    dimensions = _dimensions(values["dimensions"], limits.embeddings)
    return Prepared(
        model=model,
        prompts=_packed(_text_prompts("input", values, body, limits, text_model, room=0)),
        sampling=SamplingParams(seed=0),
        stop=StopRule(max_tokens=0),
        n=1,
        stop_strings=(),
        include_stop=False,
        stream=False,
        include_usage=False,
        priority=values["priority"],
        cache_salt=values["cache_salt"],
        embedding=EmbeddingForm(dimensions, values["encoding_format"] == "base64"),
        adapter=model if model in limits.adapters else "",
    )


def _dimensions(wanted: int | None, embeddings: Embeddings) -> int:
    """Return how many numbers of a vector are answered, 0 for all. Raises the 400 of a length that means nothing."""
    width = embeddings.width
    if wanted is None or wanted == width:
        return 0
    if wanted > width:
        reason = f"may be at most {width}: this model's vectors have no more"
    elif not embeddings.shortens:
        reason = f"must be {width} here: this model does not say that it was trained for shorter vectors"
    elif embeddings.lengths and wanted not in embeddings.lengths:
        reason = f"must be one of {', '.join(map(str, embeddings.lengths))}: this model was trained for these lengths"
    else:
        return wanted
    raise invalid(f"'dimensions' {reason}.", param="dimensions", code="invalid_value")


# --- Tokens in, tokens out --------------------------------------------------------------------------------------
class TokenizeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The body of `/detokenize`."""

    prompt: str


def _tokenize(values: dict[str, Any], job: Job, text_model: TextModel) -> Answer:
    _model(values["model"], job)
    prompt, messages = values["prompt"], values["messages"]
    if (prompt is None) == (messages is None):
        raise invalid("Give either 'prompt' or 'messages'.", param="prompt", code="missing_required_parameter")
    limit = job.limits
    ids: Sequence[int]
    if messages is None:
        # Bounded as what is generated from is: the tokenising processes are everybody's.
        _check_bytes(len(prompt.encode()), limit, text_model, "prompt", room=0)
        special = values["add_special_tokens"]
        ids = _encode(prompt, special is not False, text_model)
    else:
        _check_bytes(text_bytes(messages), limit, text_model, "messages", room=0)
        choices = {"tool_choice": "auto", "parallel_tool_calls": True}
        tool_use = read_tool_use({**values, **choices}, text_model.tool_template_source, limit.tool_call_parser)
        ids = _render(
            Conversation("messages", messages),
            values["add_generation_prompt"],
            text_model,
            told_tools(values["tools"]) if tool_use else None,
        )
    texts = (
        [text_model.token_bytes[token].decode("utf-8", "replace") for token in ids]
        if values["return_token_strs"]
        else None
    )
    return Answer(msgspec.json.encode(TokenizeAnswer(len(ids), limit.max_model_len, list(ids), texts)))


def _detokenize(values: dict[str, Any], job: Job, text_model: TextModel) -> Answer:
    _model(values["model"], job)
    tokens = values["tokens"]
    if tokens is None:
        raise invalid("'tokens' is missing.", param="tokens", code="missing_required_parameter")
    if any(token >= job.limits.vocab_size for token in tokens):
        raise invalid(
            f"'tokens' has an id outside the vocabulary: ids go from 0 to {job.limits.vocab_size - 1}.",
            "tokens",
            "invalid_value",
        )
    return Answer(msgspec.json.encode(DetokenizeAnswer(text_model.decode(tokens))))
