"""What is asked: a model, held in one precision, computed by one variant of the kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from unittest import mock

from octavo_engine.contract import ENV_CACHE
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.vocabulary import Vocabulary, write_vocabulary
from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.pull import pull
from octavo_engine.server.tokenizer import load_tokenizer
from octavo_kernels.cpu import variants
from tests.model.adapters import write_adapter_for
from tests.worker.backends import VOCAB, write_random_llama

from .asking import ADAPTERS, MAX_MODEL_LEN, Ids
from .circumstances import BASE

BUNDLED: Final = "bundled://smollm2-135m-instruct"
ENV_ISA: Final = "OCTAVO_CPU_ISA"
PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "bfloat16, int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
}
AS_STORED: Final = "as stored"
"""The bundled model's own int4 weights, with an int8 cache: what is served by default."""
_RANDOM_EOS: Final = 2
_PIECES: Final = [bytes([first, second]) for first in b"abcdefghijklmnop" for second in b"aeiou ,t"]


class Subject(NamedTuple):
    """`model`: the bundled one, or a small Llama with random weights."""

    model: Literal["smollm2", "random"]
    precision: str
    variant: str

    @property
    def name(self) -> str:
        """Name it in a table."""
        return f"{self.model}, {self.precision}, {self.variant}"


class Prepared(NamedTuple):
    """A subject's configuration, its files in place, the ids it may be asked with, and the folders of its adapters."""

    config: EngineConfig
    ids: Ids
    adapters: tuple[str, ...]


def subjects() -> list[Subject]:
    """Return all: every precision on every variant with small weights, and with real ones on the fastest."""
    small = [Subject("random", precision, variant) for variant in variants() for precision in PRECISIONS]
    return [*small, *(Subject("smollm2", precision, variants()[-1]) for precision in (*PRECISIONS, AS_STORED))]


def short_subjects() -> list[Subject]:
    """Return one, for seconds."""
    return [Subject("random", "int8", variants()[-1])]


@contextmanager
def prepared(subject: Subject) -> Iterator[Prepared]:
    """Make a subject ready to be loaded in this process or in one that it starts, as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="octavo-subject-") as name, mock.patch.dict(os.environ):
        folder = Path(name)
        os.environ[ENV_ISA] = subject.variant
        if subject.model == "random":
            # What is packed of weights that nobody uses again is nobody's to keep.
            os.environ[ENV_CACHE] = str(folder / "cache")
            path, ids = folder / "model", Ids(_RANDOM_EOS + 1, VOCAB - 1, _RANDOM_EOS)
            path.mkdir()
            write_random_llama(path)
            vocabulary = _small_vocabulary()
        else:
            path = pull(BUNDLED, lambda stage, fraction: None)
            vocabulary, ids = _real_vocabulary(path)
        write_vocabulary(folder / "vocabulary", vocabulary)
        config = EngineConfig(
            model=str(path),
            socket_folder="",
            vocabulary=str(folder / "vocabulary"),
            max_model_len=MAX_MODEL_LEN,
            threads=2,
            log_level="warning",
            **{**BASE, **PRECISIONS.get(subject.precision, {})},
        )
        spec = open_checkpoint(path).spec
        made = (write_adapter_for(folder / f"adapter-{slot}", spec, seed=slot) for slot in range(ADAPTERS))
        yield Prepared(config, ids, tuple(map(str, made)))


def _small_vocabulary() -> Vocabulary:
    tokens = [*(bytes([byte]) for byte in range(256)), *_PIECES]
    assert len(tokens) == VOCAB
    return Vocabulary(tokens, (_RANDOM_EOS,))


def _real_vocabulary(path: Path) -> tuple[Vocabulary, Ids]:
    model = load_tokenizer(path)
    special = model.special_ids | model.control_ids
    return Vocabulary(list(model.token_bytes), tuple(sorted(special))), Ids(
        max(special) + 1, model.vocab_size - 1, model.eos_token_ids[0]
    )
