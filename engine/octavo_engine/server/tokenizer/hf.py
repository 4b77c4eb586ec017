"""The tokenizer of a Hugging Face folder: `tokenizer.json`, and what its neighbours say about special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from octavo_engine.server.tokenizer import bytelevel, sentencepiece
from octavo_engine.server.tokenizer.control import ControlTokens
from octavo_engine.server.tokenizer.vocabulary import HuggingFaceBackend, TokenizerError, Vocabulary, is_structural

_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_COMPOSING_FACTOR: Final = 3
"""Unicode composition at most thirds a text's bytes (three Hangul jamo become one syllable)."""


def load(folder: Path) -> Vocabulary:
    """Return the vocabulary of the folder. Raises `TokenizerError`, OSError."""
    try:
        return _load(folder)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise TokenizerError(
            f"{folder / 'tokenizer.json'} is damaged ({error!r}): download the model again."
        ) from error


def _load(folder: Path) -> Vocabulary:
    definition = _json(folder / "tokenizer.json", required=True)
    config = _json(folder / "tokenizer_config.json")
    templates = _templates(folder, config)
    added: list[dict[str, Any]] = definition.get("added_tokens") or []
    control = ControlTokens(
        {
            token["content"]: token["id"]
            for token in added
            if token.get("special") or is_structural(token["content"], *templates.values())
        }
    )
    tokens = _tokens(definition)
    byte_level = _names_type(definition.get("decoder"), "ByteLevel")
    plain = {token["id"]: token["content"].encode("utf-8") for token in added if token["content"] in control.ids}
    data = bytelevel.token_bytes(tokens) if byte_level else [sentencepiece.token_bytes(token) for token in tokens]
    for place, text in plain.items():
        data[place] = text
    special_tokens = _special_tokens(folder, config)
    prefix, suffix = _wrapping(definition.get("post_processor"))
    eos = special_tokens.get("eos_token")
    ids = {token: place for place, token in enumerate(tokens)}
    return Vocabulary(
        backend=HuggingFaceBackend(_backend(definition, control)),
        token_bytes=data,
        special=frozenset(token["id"] for token in added if token.get("special")),
        control=control,
        bos_token_id=ids.get(special_tokens.get("bos_token", "")),
        eos_token_ids=_end_ids(folder, ids.get(eos) if eos else None),
        prefix=prefix,
        suffix=suffix,
        names=special_tokens,
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        bytes_per_token_factor=1 if definition.get("normalizer") is None else _COMPOSING_FACTOR,
        strips_leading_space=not byte_level and _names_type(definition.get("decoder"), "Strip"),
    )


def _backend(definition: dict[str, Any], control: ControlTokens) -> Any:
    """Return the tokenizer with every control token under its spelling, and without its post-processor."""
    model = dict(definition["model"])
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {_respell(token, control): place for token, place in vocabulary.items()}
        if "merges" in model:
            model["merges"] = _reachable(model["merges"], model["vocab"])
    elif isinstance(vocabulary, list):
        model["vocab"] = [[_respell(token, control), score] for token, score in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = _respell(model["unk_token"], control)
    added = [
        {**token, "content": control.spelling(token["content"]), "special": True, "normalized": False}
        if token["content"] in control.ids
        else token
        for token in definition.get("added_tokens") or []
    ]
    ours = {**definition, "model": model, "added_tokens": added, "post_processor": None}
    ours.update(truncation=None, padding=None)
    try:
        return Tokenizer.from_str(json.dumps(ours))
    except Exception as error:
        raise TokenizerError(f"tokenizer.json cannot be read ({error}): download the model again.") from error


def _respell(token: str, control: ControlTokens) -> str:
    return control.spelling(token) if token in control.ids else token


def _reachable(merges: Iterable[Any], vocabulary: Mapping[str, int]) -> list[Any]:
    kept = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if left in vocabulary and right in vocabulary and left + right in vocabulary:
            kept.append(merge)
    return kept


def _tokens(definition: dict[str, Any]) -> list[str]:
    """Return every token by id; holes are empty."""
    vocabulary = definition["model"].get("vocab") or {}
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((t[0], place) for place, t in enumerate(vocabulary))
    )
    by_id = {place: token for token, place in pairs}
    by_id.update((token["id"], token["content"]) for token in definition.get("added_tokens") or [])
    if not by_id:
        raise TokenizerError("tokenizer.json holds no vocabulary: download the model again.")
    return [by_id.get(place, "") for place in range(max(by_id) + 1)]


def _names_type(component: Any, name: str) -> bool:
    """Return whether a component of `tokenizer.json`, or one it is a sequence of, is of type `name`."""
    if isinstance(component, dict):
        return component.get("type") == name or any(_names_type(part, name) for part in component.values())
    if isinstance(component, list):
        return any(_names_type(part, name) for part in component)
    return False


def _wrapping(processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids a post-processor puts before and after a single text."""
    if not isinstance(processor, dict):
        return (), ()
    if processor.get("type") == "Sequence":
        parts = [_wrapping(part) for part in processor.get("processors", ())]
        return sum((part[0] for part in parts), ()), sum((part[1] for part in parts), ())
    if processor.get("type") != "TemplateProcessing":
        return (), ()
    sides: tuple[list[int], list[int]] = ([], [])
    after = 0
    for piece in processor["single"]:
        if "Sequence" in piece:
            after = 1
        else:
            sides[after].extend(processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    return tuple(sides[0]), tuple(sides[1])


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    merged = {**_json(folder / "special_tokens_map.json"), **config}
    found = {}
    for name in _NAMES:
        token = merged.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[name] = text
    return found


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, `default` and perhaps `tool_use`: their own files first, then the config's."""
    template = config.get("chat_template")
    named = {entry["name"]: entry["template"] for entry in template} if isinstance(template, list) else {}
    if isinstance(template, str):
        named["default"] = template
    files = {"default": folder / "chat_template.jinja"}
    files["tool_use"] = folder / "additional_chat_templates" / "tool_use.jinja"
    named |= {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    return {name: text for name, text in named.items() if isinstance(text, str)}


def _end_ids(folder: Path, eos: int | None) -> tuple[int, ...]:
    """Return the ids that end generation: generation_config.json, else config.json, else the tokenizer's own."""
    for name in ("generation_config.json", "config.json"):
        ends = _json(folder / name).get("eos_token_id")
        if isinstance(ends, int):
            return (ends,)
        if isinstance(ends, list) and ends:
            return tuple(int(end) for end in ends)
    return () if eos is None else (eos,)


def _json(path: Path, required: bool = False) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise TokenizerError(f"{path} is missing: a Hugging Face folder needs its tokenizer.json.") from None
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON ({error}): download the model again.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} is not a JSON object: download the model again.")
    return content
