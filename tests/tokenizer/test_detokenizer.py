"""Streams: joined deltas are the whole text, no character is torn, and nothing of the prompt appears."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.server.tokenizer import Detokenizer, TextModel, load_tokenizer
from tests.tokenizer.corpus import HAND

SCRIPTED = load_tokenizer("scripted://")
REPLACEMENT = "\ufffd"


class Pieces:
    """A vocabulary of given byte strings: token i is piece i."""

    def __init__(self, *pieces: bytes) -> None:
        self.text_bytes: Sequence[bytes] = pieces


def stream(pieces: Sequence[bytes], prompt: Sequence[bytes] = ()) -> list[str]:
    """Return every delta of a stream whose tokens are `pieces`, the last flush included."""
    detokenizer = Detokenizer(Pieces(*prompt, *pieces), range(len(prompt)))
    deltas = [detokenizer.push([len(prompt) + place]) for place in range(len(pieces))]
    return [*deltas, detokenizer.finish()]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"\x41", b"\xf0\x9f", b"\xa6\x99", b"\x21"], "A🦙!"),
        ([b"\x41\x20\xe4\xb8\x96\xe7", b"\x95\x8c", b"\x62"], "A 世界b"),
        (["👨‍👩‍👧".encode()[cut : cut + 3] for cut in range(0, 18, 3)], "👨‍👩‍👧"),
    ],
)
def test_characters_split_over_tokens_arrive_whole(pieces: list[bytes], text: str) -> None:
    deltas = stream(pieces)
    assert "".join(deltas) == text
    assert deltas[-1] == ""
    assert not any(REPLACEMENT in delta for delta in deltas)


def test_a_truncated_character_is_flushed_once_at_the_end() -> None:
    detokenizer = Detokenizer(Pieces(b"\xf0", b"\x9f", b"\xa6"))
    assert [detokenizer.push([token]) for token in range(3)] == ["", "", ""]
    assert [detokenizer.finish(), detokenizer.finish()] == [REPLACEMENT, ""]


def test_an_invalid_byte_does_not_stall_the_stream() -> None:
    deltas = stream([b"\xff"] + [b"a"] * 50)
    assert deltas == [REPLACEMENT] + ["a"] * 50 + [""]


def test_an_unfinished_character_followed_by_text_gives_way_at_once() -> None:
    assert stream([b"\xe4\xb8", b"b", b"c"]) == ["", REPLACEMENT + "b", "c", ""]


@pytest.mark.parametrize("text", ["🦙", "A🦙!", "世界", "e\u0301x", "👨‍👩‍👧", "é", "한글", "a🇩🇪b"])
def test_every_split_of_a_text_gives_that_text(text: str) -> None:
    data = text.encode()
    cuts = range(1, len(data))
    chosen = itertools.chain.from_iterable(itertools.combinations(cuts, size) for size in range(min(4, len(data))))
    for cut in [*chosen, tuple(cuts)]:
        edges = [0, *cut, len(data)]
        deltas = stream([data[start:end] for start, end in itertools.pairwise(edges)])
        assert "".join(deltas) == text
        assert deltas[-1] == ""
        assert not any(REPLACEMENT in delta for delta in deltas)


@given(st.lists(st.binary(min_size=0, max_size=5), max_size=12), st.data())
@settings(max_examples=400, deadline=None)
def test_deltas_equal_the_whole_decode_for_any_bytes_and_any_grouping(pieces: list[bytes], data: st.DataObject) -> None:
    detokenizer = Detokenizer(Pieces(*pieces))
    deltas = []
    at = 0
    while at < len(pieces):
        size = data.draw(st.integers(1, 4))
        deltas.append(detokenizer.push(range(at, min(at + size, len(pieces)))))
        at += size
    deltas.append(detokenizer.finish())
    assert "".join(deltas) == b"".join(pieces).decode("utf-8", "replace")


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=8))
@settings(max_examples=300, deadline=None)
def test_at_most_three_bytes_are_held_back(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer(Pieces(*pieces))
    told = ""
    for place in range(len(pieces)):
        told += detokenizer.push([place])
        whole = b"".join(pieces[: place + 1])
        shortest = min(len(whole[: len(whole) - held].decode("utf-8", "replace")) for held in range(4))
        assert len(told) >= shortest


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_a_prompt_never_appears_in_the_stream(prompt: str, text: str, cut: int) -> None:
    before = prompt.encode()
    before = before[: len(before) - cut]
    deltas = stream([bytes([byte]) for byte in text.encode()], [bytes([byte]) for byte in before])
    assert "".join(deltas) == text


def test_a_character_begun_by_the_prompt_is_emitted_when_the_answer_completes_it() -> None:
    assert stream([b"\xa6\x99", b"!"], [b"hi \xf0\x9f"]) == ["🦙", "!", ""]
    assert stream([b"\xa6", b"\x99!"], [b"hi \xf0\x9f"]) == ["", "🦙!", ""]


def test_half_a_character_in_the_prompt_is_forgotten_when_the_answer_goes_on_otherwise() -> None:
    assert stream([b"b", b"c"], [b"hi \xf0\x9f"]) == ["b", "c", ""]
    assert stream(["é".encode()], [b"\xe4"]) == ["é", ""]


def test_special_tokens_and_unknown_ids_are_no_text() -> None:
    detokenizer = SCRIPTED.detokenizer()
    assert detokenizer.push([ord("a"), 257, 258, 256, 10**6, -1, ord("b")]) == "ab"


def test_a_special_token_within_a_character_does_not_tear_it() -> None:
    detokenizer = SCRIPTED.detokenizer()
    assert "".join(detokenizer.push([token]) for token in [0xE4, 0xB8, 258, 0x96]) == "世"
    assert SCRIPTED.decode([0xE4, 0xB8, 258, 0x96]) == "世"


def test_choices_of_one_request_do_not_share_halves() -> None:
    table = Pieces(b"\xf0\x9f", b"\xa6\x99", b"\x98\x80")
    first, second = Detokenizer(table), Detokenizer(table)
    assert [first.push([0]), second.push([0]), first.push([1]), second.push([2])] == ["", "", "🦙", "😀"]


def test_real_texts_stream_whole_through_the_models_own_tokens(text_model: TextModel) -> None:
    for text in HAND:
        ids = text_model.encode_user(text)
        detokenizer = text_model.detokenizer(text_model.encode_chat([{"role": "user", "content": "世"}]))
        told = [detokenizer.push([token]) for token in ids] + [detokenizer.finish()]
        assert "".join(told) == text_model.decode(ids)


def test_random_ids_of_the_model_stream_as_they_decode(text_model: TextModel) -> None:
    source = random.Random(11)
    for _ in range(500):
        ids = source.choices(range(300), k=source.randint(1, 20))
        detokenizer = text_model.detokenizer()
        told = [detokenizer.push([token]) for token in ids] + [detokenizer.finish()]
        assert "".join(told) == text_model.decode(ids)


def test_a_stream_costs_next_to_nothing(text_model: TextModel) -> None:
    streams = [text_model.detokenizer([5, 6, 7]) for _ in range(5000)]
    assert sys.getsizeof(streams[0]) < 100
    assert len(pickle.dumps(Detokenizer(Pieces()))) < 500
    assert all(stream._table is text_model.text_bytes for stream in streams)
