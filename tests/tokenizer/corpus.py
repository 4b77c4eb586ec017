"""Strings to tokenise: what people wrote by hand, and a seeded mixture of everything."""

from __future__ import annotations

import random
from collections.abc import Iterable

HAND = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \t \n ",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "don't can't I'll we've they'RE",
    "ümläüt Straße",
    "naïve café résumé",
    "cafe\u0301 nai\u0308ve",
    "Ελληνικά",
    "Привет, мир",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "こんにちは世界",
    "你好,世界!",
    "안녕하세요 세계",
    "한글 자모",
    "𠜎𠜱𠝹",
    "日本語とEnglish混在123テスト",
    "🦙",
    "A🦙!",
    "👨‍👩‍👧‍👦",
    "👍🏽",
    "🏳️‍🌈",
    "🇩🇪🇫🇷",
    "e\u0301\u0323",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "\u0000",
    "\u0001\u0002\u001f\u007f",
    "0",
    "12",
    "123",
    "1234567890",
    "3.14159",
    "1,000,000.00",
    "-1e-10",
    "0x1F",
    "  5",
    "a  5",
    "\n\n5",
    "x = 12",
    "²½Ⅷ٣",
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] = b[i] * 2;\n}",
    "SELECT * FROM t WHERE a='b';",
    '<html><body class="x">&nbsp;</body></html>',
    '{"a": [1, 2, {"b": null}], "c": "\\u00e9"}',
    "#!/bin/sh\nset -eu\n",
    "https://example.com/a?b=c&d=e#f",
    "user@example.com",
    "C:\\Users\\x\\y.txt",
    "$E = mc^2$",
    "a_b-c.d/e|f~g`h",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>",
    "x<|im_end|>y",
    "<|im_start|",
    "|im_start|>",
    "<|im_start|><|im_start|>",
    "<|IM_START|>",
    " <|im_end|> ",
    "<repo_name>x<file_sep>y",
    "<empty_output>",
    "<|im_<|im_start|>start|>",
    "<0x0A>",
    "▁a▁b",
    "Ġa",
    "Ċ",
    "!" * 50,
    "a" * 300,
    " " * 100,
    "\n" * 40,
    "ab " * 100,
    "é" * 50,
)

_PROSE = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they one
internationalisation tokenizer Kubernetes München 東京 наука γλῶσσα don't it's HELLO camelCase snake_case 42 007 3.5"""
_WORDS = _PROSE.split()
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " \t\n\r",
    ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
    "äöüßéèêëàáâçñøåæœ",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "あいうえおかきくけこアイウエオ",
    "的一是不了人我在有他这为之大来以个中上们",
    "가나다라마바사아자차카타파하",
    "😀😂🥺🦙🚀👍🏽❤️🔥🎉👨‍👩‍👧",
    "\u0301\u0308\u200d\ufe0f\u200b\u00a0\u3000",
)


def strings(count: int, added: Iterable[str] = (), seed: int = 0) -> list[str]:
    """Return the hand list, every added token in several company, and seeded mixtures: `count` strings at least."""
    source = random.Random(seed)
    added = list(added)
    found = list(HAND)
    for token in added:
        found += [
            token,
            f"a{token}b",
            f" {token} ",
            f"{token}{token}",
            f"{token}\n5",
            token[:-1],
            token[1:],
            f"日{token}🦙",
        ]
    while len(found) < count:
        found.append(_mixture(source, added))
    return found


def _mixture(source: random.Random, added: list[str]) -> str:
    pieces = []
    for _ in range(source.randint(1, 12)):
        kind = source.random()
        if kind < 0.35:
            pieces.append(" ".join(source.choices(_WORDS, k=source.randint(1, 5))))
        elif kind < 0.75:
            pieces.append("".join(source.choices(source.choice(_ALPHABETS), k=source.randint(1, 8))))
        elif kind < 0.85 and added:
            pieces.append(source.choice(added))
        elif kind < 0.93:
            pieces.append(" " * source.randint(1, 9))
        else:
            pieces.append(chr(_character(source)))
    return "".join(pieces)


def _character(source: random.Random) -> int:
    while 0xD800 <= (code := source.randrange(0x110000)) <= 0xDFFF:
        pass
    return code
