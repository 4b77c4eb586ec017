"""The bundled model's tokenizer, ours and `transformers`'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo_engine.model.pull import pull
from octavo_engine.server.tokenizer import TextModel, load_tokenizer


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    return pull("bundled://smollm2-135m-instruct")


@pytest.fixture(scope="session")
def text_model(gguf_file: Path) -> TextModel:
    return load_tokenizer(gguf_file)


@pytest.fixture(scope="session")
def reference(gguf_file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
