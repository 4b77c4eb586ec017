"""The tokenizer of `scripted://` models: one token per byte, and ChatML's control tokens after them."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlsplit

from octavo_engine.server.tokenizer.control import ControlTokens
from octavo_engine.server.tokenizer.vocabulary import Vocabulary

END_OF_TEXT: Final = 256
CONTROL: Final = {"<|endoftext|>": END_OF_TEXT, "<|im_start|>": 257, "<|im_end|>": 258}
TEMPLATE: Final = """\
{% if tools %}{{ '<|im_start|>system\\nCall as <tool_call>{"name": …, "arguments": {…}}</tool_call>.\\n' }}\
{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}\
{% for call in message['tool_calls'] or [] %}{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}\
{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


class _Bytes:
    def __init__(self, control: ControlTokens) -> None:
        self._control = control

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`. Raises UnicodeEncodeError for a lone surrogate."""
        ids: list[int] = []
        for piece in self._control.pieces(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(piece.encode("utf-8"))
        return ids


def load(uri: str) -> Vocabulary:
    """Return the vocabulary of a scripted model: ids up to its `vocab` that mean nothing follow the control tokens."""
    control = ControlTokens(CONTROL)
    (size,) = parse_qs(urlsplit(uri).query).get("vocab", ["0"])[-1:]
    unused = max(0, int(size) - 256 - len(CONTROL)) if size.isdecimal() else 0
    return Vocabulary(
        backend=_Bytes(control),
        token_bytes=[bytes([byte]) for byte in range(256)] + [text.encode() for text in CONTROL] + [b""] * unused,
        special=frozenset(CONTROL.values()),
        control=control,
        eos_token_ids=(END_OF_TEXT,),
        names={"eos_token": "<|endoftext|>"},
        chat_template=TEMPLATE,
    )
