"""Text to token ids and back, in the API process.

`load_tokenizer(path)` gives a `TextModel` for a GGUF file, a Hugging Face folder or a `scripted://` address. A process
pool passes the path and loads once in each worker.
"""

from __future__ import annotations

from pathlib import Path

from octavo_engine.server.template import TemplateError
from octavo_engine.server.tokenizer.detokenizer import Detokenizer
from octavo_engine.server.tokenizer.text_model import EncodingError, Message, TextModel
from octavo_engine.server.tokenizer.vocabulary import TokenizerError

__all__ = [
    "Detokenizer",
    "EncodingError",
    "Message",
    "TemplateError",
    "TextModel",
    "TokenizerError",
    "load_tokenizer",
]

SCRIPTED = "scripted://"


def load_tokenizer(source: str | Path) -> TextModel:
    """Return the text side of a model.

    `source` is a `.gguf` file, a folder with a `tokenizer.json` (or with one `.gguf`), or `scripted://…`.
    Raises `TokenizerError` with the remedy, OSError.
    """
    # Each kind imports only what it needs: `tokenizers` alone costs 70 ms.
    if isinstance(source, str) and source.startswith(SCRIPTED):
        from octavo_engine.server.tokenizer import scripted

        return TextModel(scripted.load(source))
    path = Path(source)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            path = files[0]
    if path.is_dir():
        from octavo_engine.server.tokenizer import hf

        return TextModel(hf.load(path))
    if not path.exists():
        raise TokenizerError(f"{path} does not exist: name a GGUF file or a Hugging Face folder.")
    from octavo_engine.server.tokenizer import gguf

    return TextModel(gguf.load(path))
