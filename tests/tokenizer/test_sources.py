"""Every kind of model file gives the tokenizer `transformers` makes of it; a damaged one says what to do."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers import decoders as token_decoders

from octavo_engine.model.gguf_metadata import read_gguf_metadata
from octavo_engine.server.tokenizer import TextModel, TokenizerError, load_tokenizer
from octavo_engine.server.tokenizer.gguf import TokenType, build
from tests.tokenizer.corpus import HAND, strings

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n<think>{{ m.content }}</think><|im_end|>{% endfor %}"
WORDS = ["hello", "world", "the", "tokens", "5", "日本"]


def auto_tokenizer(folder: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **options)


def write_gguf(path: Path, arrays: dict[str, list[Any]], values: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, array in arrays.items():
        writer.add_array(f"tokenizer.ggml.{key}", array)
    for key, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(key if key.startswith("tokenizer.") else f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "default"])
def test_byte_level_gguf_of_other_families(gguf_file: Path, tmp_path: Path, pre: str) -> None:
    metadata = read_gguf_metadata(gguf_file)
    types = list(metadata["tokenizer.ggml.token_type"])
    types[5] = int(TokenType.USER_DEFINED)
    write_gguf(
        tmp_path / "model.gguf",
        {
            "tokens": metadata["tokenizer.ggml.tokens"][:6000],
            "token_type": types[:6000],
            "merges": metadata["tokenizer.ggml.merges"][:5600],
        },
        {"model": "gpt2", "pre": pre, "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False},
    )
    ours, theirs = load_tokenizer(tmp_path / "model.gguf"), auto_tokenizer(tmp_path, gguf_file="model.gguf")
    corpus = strings(700, sorted(theirs.get_added_vocab()), seed=5)
    assert [text for text in corpus if ours.encode(text) != theirs.encode(text)] == []
    assert ours.encode_prompt("<file_sep>") == [5], "a user-defined token that no template writes is ordinary text"


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Return tokens, scores and types of a small SentencePiece-style vocabulary with every merge it needs."""
    control = ["<unk>", "<s>", "</s>"]
    data = [f"<0x{byte:02X}>" for byte in range(256)]
    whole = ["▁" + word for word in WORDS] + WORDS
    parts = {word[:end] for word in whole for end in range(2, len(word))}
    pieces = [*sorted(parts), *(word for word in whole if len(word) > 1)]
    characters = sorted({character for word in [*whole, "abcdefghijklmnopqrstuvwxyz.,!"] for character in word})
    pieces = list(dict.fromkeys(piece for piece in pieces if len(piece) > 1))
    tokens = [*control, *data, *pieces, *characters]
    scores = [0.0] * 259 + [-float(place) for place in range(len(pieces) + len(characters))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    return tokens, scores, [int(kind) for kind in types] + [int(TokenType.NORMAL)] * (len(tokens) - 259)


def test_sentencepiece_gguf(tmp_path: Path) -> None:
    tokens, scores, types = sentencepiece_vocabulary()
    write_gguf(
        tmp_path / "model.gguf",
        {"tokens": tokens, "scores": scores, "token_type": types},
        {"model": "llama", "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True},
    )
    ours, theirs = load_tokenizer(tmp_path / "model.gguf"), auto_tokenizer(tmp_path, gguf_file="model.gguf")
    corpus = [*strings(500, ["<s>", "</s>", "<unk>"], seed=6), *map(" ".join, itertools.permutations(WORDS, 3))]
    different = [text for text in corpus if ours.encode(text) != theirs.encode(text)]
    assert different == []
    assert ours.encode_prompt("hello")[0] == 1
    assert ours.encode_user("</s>hello") != ours.encode("</s>hello", add_special=False)
    for text in ("hello world", "日本 the 🦙 tokens", "a.b, c!"):
        ids = ours.encode_user(text)
        assert ours.decode(ids) == text == theirs.decode(ids)
        stream = ours.detokenizer([1])
        assert "".join(stream.push([token]) for token in ids) + stream.finish() == " " + text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Hugging Face's tools write it: composed Unicode, BOS, `<think>` not special, EOS ids beside it."""
    path = tmp_path_factory.mktemp("hf")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*alphabet, "he", "ll", "hell", "hello", "Ġ<"])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "<")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = token_decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<s>", "<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", "<pad-like>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(CHATML)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    return path


def test_folder_ids_texts_and_prompts(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), auto_tokenizer(folder)
    corpus = strings(800, sorted(theirs.get_added_vocab()), seed=8)
    assert [text for text in corpus if ours.encode(text) != theirs.encode(text)] == []
    for text in HAND:
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_ids == (258, 256)
    assert ours.bos_token_id == theirs.bos_token_id == ours.encode_prompt("x")[0]
    chat = [{"role": "user", "content": "hello cafe\u0301"}]
    assert ours.render_chat(chat) == theirs.apply_chat_template(chat, tokenize=False)
    assert ours.encode_chat(chat) == theirs.apply_chat_template(chat, tokenize=True, return_dict=False)


def unigram() -> Tokenizer:
    pieces = ["▁hello", "▁world", "▁", "he", "llo", "日本", *"abcdefghijklmnopqrstuvwxyz0123456789.,!"]
    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), *((piece, -1.0 - place) for place, piece in enumerate(pieces))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = token_decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def byte_fallback() -> Tokenizer:
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁h", *"hello", "ll", "he"]
    vocabulary = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
    merges = [("▁", "h"), ("l", "l"), ("h", "e")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = token_decoders.Sequence(
        [
            token_decoders.Replace("▁", " "),
            token_decoders.ByteFallback(),
            token_decoders.Fuse(),
            token_decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    tokens = ["[UNK]", "<s>", "hello", "world", "##s", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.mark.parametrize("make", [unigram, byte_fallback, word_piece])
def test_folders_of_other_kinds_give_the_ids_of_their_own_file(tmp_path: Path, make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>")])
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = load_tokenizer(tmp_path)
    for text in strings(500, ["<s>", "<|end|>", "<mask>"], seed=9):
        assert model.encode(text) == tokenizer.encode(text).ids, text
        # Id 0 stands for what the vocabulary cannot spell.
        assert model.control_ids.intersection(model.encode_user(text)) <= {0}


def test_tokens_a_template_writes_are_control_tokens_even_if_not_special(folder: Path) -> None:
    model = load_tokenizer(folder)
    think = model.encode("<think>", add_special=False)
    assert len(think) == 1
    assert think[0] in model.control_ids - model.special_ids
    ids = model.encode_chat([{"role": "user", "content": "</think><think><|im_end|>"}])
    assert [model.token_bytes[token].decode() for token in ids if token in model.control_ids] == [
        "<|im_start|>", "<think>", "</think>", "<|im_end|>",
    ]  # fmt: skip
    assert model.decode(think) == "<think>"
    assert len(model.encode_user("<pad-like>")) == 1


@pytest.mark.parametrize("where", ["config", "files", "gguf"])
def test_a_model_s_own_template_for_tools(folder: Path, gguf_file: Path, tmp_path: Path, where: str) -> None:
    """Chats with tools, or with calls made before, have the template `tool_use`, as in transformers."""
    tool_use = "<think>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[-1].tool_calls | tojson }}"
    if where == "gguf":
        metadata = read_gguf_metadata(gguf_file)
        ours = TextModel(build({**metadata, "tokenizer.chat_template.tool_use": tool_use}))
    else:
        path = Path(shutil.copytree(folder, tmp_path / "model"))
        if where == "config":
            (path / "chat_template.jinja").unlink()
            config = json.loads((path / "tokenizer_config.json").read_text())
            config["chat_template"] = [
                {"name": "default", "template": CHATML},
                {"name": "tool_use", "template": tool_use},
            ]
            (path / "tokenizer_config.json").write_text(json.dumps(config))
        else:
            (path / "additional_chat_templates").mkdir()
            (path / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
        ours = load_tokenizer(path)
    chat: list[dict[str, Any]] = [{"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = [{"role": "user", "content": "hello"}]
    with_tools = ours.render_chat(plain + chat, tools=tools, add_generation_prompt=False)
    assert with_tools.startswith('<think>{"type": "function"')
    assert ours.render_chat(plain + chat).startswith("<think>[")
    assert ours.render_chat(plain).startswith("<|im_start|>")
    assert ours.tool_template_source == tool_use
    if where != "gguf":
        theirs = auto_tokenizer(path)
        assert ours.render_chat(plain) == theirs.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        chat[0]["tool_calls"][0]["function"]["arguments"] = {}
        assert with_tools == theirs.apply_chat_template(plain + chat, tools=tools, tokenize=False)


def test_composition_is_allowed_for_in_the_bytes_a_token_may_take(folder: Path) -> None:
    model = load_tokenizer(folder)
    jamo = "\u1112\u1161\u11ab" * 500
    assert len(jamo.encode()) <= len(model.encode_user(jamo)) * model.max_token_bytes


def test_a_folder_with_one_gguf_is_that_gguf(gguf_file: Path, tmp_path: Path, text_model: TextModel) -> None:
    (tmp_path / "model.gguf").symlink_to(gguf_file)
    assert load_tokenizer(tmp_path).encode("hello") == text_model.encode("hello")


def test_scripted_models_have_one_token_per_byte() -> None:
    model = load_tokenizer("scripted://?prefill=8000&step=20ms&blocks=512")
    for text in HAND:
        assert model.encode_user(text) == list(text.encode())
        assert model.decode(model.encode_user(text)) == text
    assert (model.vocab_size, model.eos_token_ids) == (259, (256,))
    assert load_tokenizer("scripted://?vocab=1000").vocab_size == 1000
    assert model.encode("<|im_start|>") == [257]


def test_a_spelling_is_secret_to_its_process() -> None:
    first, second = load_tokenizer("scripted://"), load_tokenizer("scripted://")
    spelled = first._vocabulary.control.spell("<|im_end|>")
    assert first.encode_user(spelled) == [258]
    assert second.control_ids.isdisjoint(second.encode_user(spelled))


def damaged(path: Path, gguf_file: Path, kind: str) -> Path:
    target = path / "model.gguf"
    head = gguf_file.read_bytes()[:200_000]
    content = {
        "empty": b"",
        "other": b"PK\x03\x04 this is a zip",
        "cut": head,
        "version": b"GGUF\x01\x00\x00\x00" + head[8:],
        "count": head[:16] + b"\xff" * 8 + head[24:],
    }
    target.write_bytes(content[kind])
    return target


@pytest.mark.parametrize("kind", ["empty", "other", "cut", "version", "count"])
def test_a_damaged_gguf_is_one_sentence_with_the_remedy(gguf_file: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(TokenizerError, match=r"model\.gguf .*(download|name a|can be read)"):
        load_tokenizer(damaged(tmp_path, gguf_file, kind))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"model": "bert"}, "'bert'; 'gpt2' and 'llama'"), ({"model": "gpt2", "pre": "zebra"}, "'zebra'; these can")],
)
def test_an_unknown_kind_of_vocabulary_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", {"tokens": ["a", "b"], "token_type": [1, 1]}, values)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"model": 5}', '{"model": {"type": "BPE"}}', '{"model": {"vocab": {"a": 0}}}']
)
def test_a_damaged_folder_is_one_sentence_with_the_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match="download"):
        load_tokenizer(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="does not exist"):
        load_tokenizer(tmp_path / "nothing.gguf")
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
