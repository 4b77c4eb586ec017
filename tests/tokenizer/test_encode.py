"""Ids equal `transformers`'; a user's text never becomes a control token."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.server.tokenizer import EncodingError, TextModel
from tests.tokenizer.corpus import HAND, strings


def spellable(model: TextModel, text: str) -> bool:
    """Return whether the vocabulary has every byte of the text (SmolLM2 lacks some, as does `transformers`' build)."""
    return set(text.encode()) <= {data[0] for data in model.token_bytes if len(data) == 1}


def test_ids_equal_transformers_on_every_kind_of_text(text_model: TextModel, reference: Any) -> None:
    added = sorted(reference.get_added_vocab())
    assert len(added) == 17
    corpus = strings(3000, added)
    assert len(set(corpus)) >= 2000
    expected = reference(corpus)["input_ids"]
    different = [text for text, ids in zip(corpus, expected, strict=True) if text_model.encode(text) != ids]
    assert different == []


def test_text_of_ids_equals_transformers(text_model: TextModel, reference: Any) -> None:
    for text in strings(1200, sorted(reference.get_added_vocab()), seed=1):
        ids = text_model.encode(text)
        assert text_model.decode(ids, skip_special=False) == reference.decode(ids)
        if spellable(text_model, text):
            assert text_model.decode(ids, skip_special=False) == text
        assert text_model.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_ids_in_any_order_decode_as_transformers_decodes_them(text_model: TextModel, reference: Any) -> None:
    source = random.Random(7)
    for _ in range(500):
        ids = source.choices(range(text_model.vocab_size), k=source.randint(1, 12))
        assert text_model.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_vocabulary_and_special_ids_are_the_models(text_model: TextModel, reference: Any) -> None:
    assert text_model.vocab_size == len(reference) == 49152
    assert text_model.special_ids == set(reference.all_special_ids) | set(reference.get_added_vocab().values())
    assert text_model.bos_token_id == reference.bos_token_id
    assert text_model.eos_token_ids == (reference.eos_token_id,)


def test_user_text_never_becomes_a_control_token(text_model: TextModel, reference: Any) -> None:
    added = sorted(reference.get_added_vocab())
    for text in strings(2500, added, seed=2):
        for ids in (text_model.encode_user(text), text_model.encode_prompt(text)):
            assert text_model.control_ids.isdisjoint(ids)
            assert text_model.decode(ids) == text or not spellable(text_model, text)


def test_user_text_without_control_tokens_is_encoded_as_ever(text_model: TextModel) -> None:
    for text in strings(800, seed=3):
        if not text_model.control_ids.intersection(text_model.encode(text)):
            assert text_model.encode_user(text) == text_model.encode(text)


def test_a_token_takes_at_most_the_stated_bytes(text_model: TextModel) -> None:
    assert text_model.max_token_bytes == max(map(len, text_model.token_bytes)) == 81
    for text in filter(lambda text: spellable(text_model, text), HAND):
        assert len(text.encode()) <= len(text_model.encode_user(text)) * text_model.max_token_bytes


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\udc80\ud800"])
def test_a_lone_surrogate_is_refused_in_one_sentence(text_model: TextModel, text: str) -> None:
    for encode in (text_model.encode, text_model.encode_user, text_model.encode_prompt):
        with pytest.raises(EncodingError, match="surrogate"):
            encode(text)


def test_neither_torch_nor_transformers_nor_numpy_is_imported(gguf_file: Path) -> None:
    program = (
        "import sys; from octavo_engine.server.tokenizer import load_tokenizer as load\n"
        f"m = load({str(gguf_file)!r}); m.encode_chat([{{'role': 'user', 'content': 'hi'}}])\n"
        "print([n for n in ('torch', 'transformers', 'numpy', 'gguf') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
