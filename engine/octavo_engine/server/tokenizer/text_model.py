"""`TextModel`: everything the API process knows about a model's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from octavo_engine.server.template import ChatTemplate, TemplateError
from octavo_engine.server.tokenizer.detokenizer import Detokenizer
from octavo_engine.server.tokenizer.vocabulary import Vocabulary

Message = Mapping[str, Any]


class EncodingError(ValueError):
    """The text is not Unicode text (a lone surrogate)."""


class _Shown(NamedTuple):
    """Bytes of each id as part of an answer in which some special tokens are seen."""

    text_bytes: Sequence[bytes]


class TextModel:
    """A model's tokenizer, detokenizer and chat template. Immutable; made by `load_tokenizer` in each process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.token_bytes: Sequence[bytes] = vocabulary.token_bytes
        """Bytes of each id; control tokens by their text."""
        self.vocab_size = len(vocabulary.token_bytes)
        self.special_ids = vocabulary.special
        self.control_ids = frozenset(vocabulary.control.ids.values())
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        longest = max((len(data) for data in vocabulary.token_bytes), default=1)
        self.max_token_bytes = max(1, longest) * vocabulary.bytes_per_token_factor
        """A text of more than n x this many UTF-8 bytes cannot fit into n tokens."""
        self._shown: dict[tuple[str, ...], _Shown] = {}

    @cached_property
    def text_bytes(self) -> Sequence[bytes]:
        """Bytes of each id as part of an answer: empty for special tokens."""
        special = self.special_ids
        return [b"" if place in special else data for place, data in enumerate(self.token_bytes)]

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space was added by the tokenizer, and is not part of it."""
        return self._vocabulary.strips_leading_space

    @property
    def chat_template_source(self) -> str | None:
        """The model's own chat template, or None."""
        return self._vocabulary.chat_template

    @property
    def tool_template_source(self) -> str | None:
        """The template of chats with tools, or None."""
        return self._vocabulary.tool_template or self._vocabulary.chat_template

    @cached_property
    def _template(self) -> ChatTemplate:
        source = self._vocabulary.chat_template
        if source is None:
            raise TemplateError("This model has no chat template: use /v1/completions, or a model made for chat.")
        return ChatTemplate(source, self._vocabulary.control, self._vocabulary.names)

    @cached_property
    def _tool_template(self) -> ChatTemplate:
        source = self._vocabulary.tool_template
        return ChatTemplate(source, self._vocabulary.control, self._vocabulary.names) if source else self._template

    def _render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        has_tools = variables.get("tools") or any(message.get("tool_calls") for message in messages)
        return (self._tool_template if has_tools else self._template).render(messages, **variables)

    def encode(self, text: str, *, control: bool = True, add_special: bool = True) -> list[int]:
        """Return the ids of `text`. Raises `EncodingError`.

        With `control`, names of control tokens in it become control tokens: never for text that came from a user.
        `add_special` puts the model's BOS (and EOS) around it if the model's metadata says so.
        """
        spelled = self._vocabulary.control.spell(text) if control else text
        return self._wrap(self._encode(spelled)) if add_special else self._encode(spelled)

    def encode_user(self, text: str) -> list[int]:
        """Return the ids of a user's text: what looks like a control token is ordinary characters, nothing added."""
        return self._encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a completion prompt: a user's text, with the model's own BOS rule."""
        return self._wrap(self._encode(text))

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Return the prompt text, as `apply_chat_template` renders it. Raises `TemplateError`."""
        spelled = self._render(messages, {"add_generation_prompt": add_generation_prompt, **variables})
        return self._vocabulary.control.unspell(spelled)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Return the prompt's ids; only the template writes control tokens. Raises `TemplateError`, `EncodingError`."""
        return self._encode(self._render(messages, {"add_generation_prompt": add_generation_prompt, **variables}))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that form no character are U+FFFD, ids outside the vocabulary are nothing."""
        table = self.text_bytes if skip_special else self.token_bytes
        text = b"".join([table[token] for token in ids if 0 <= token < self.vocab_size]).decode("utf-8", "replace")
        return text[1:] if self._vocabulary.strips_leading_space and text[:1] == " " else text

    def detokenizer(self, prompt_ids: Sequence[int] = (), shown: tuple[str, ...] = ()) -> Detokenizer:
        """Return a stream's detokenizer. shown: special tokens that are to be seen all the same."""
        return Detokenizer(self._showing(shown) if shown else self, prompt_ids)

    def special_among(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """Return those of `tokens` that are special tokens here: an answer's text leaves them out."""
        return tuple(token for token in tokens if token in self.special_names)

    @cached_property
    def special_names(self) -> dict[str, int]:
        """The ids of the special tokens by their names."""
        return {name: token for name, token in self._vocabulary.control.ids.items() if token in self.special_ids}

    def _showing(self, tokens: tuple[str, ...]) -> _Shown:
        if tokens not in self._shown:
            table = list(self.text_bytes)
            for token in self.special_among(tokens):
                table[self._vocabulary.control.ids[token]] = token.encode()
            self._shown[tokens] = _Shown(table)
        return self._shown[tokens]

    def _encode(self, spelled: str) -> list[int]:
        try:
            return self._vocabulary.backend.encode(spelled)
        except (TypeError, UnicodeEncodeError):
            # `tokenizers` reports a str that is not UTF-8 as a wrong type.
            raise EncodingError("The text holds a lone surrogate, which is no character: send valid Unicode.") from None

    def _wrap(self, ids: list[int]) -> list[int]:
        return [*self._vocabulary.prefix, *ids, *self._vocabulary.suffix]
