"""Grammars are compiled beside the loop, one after the other; the requests that have them wait meanwhile."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from octavo_engine.ipc.grammar_limits import one_sentence, parser_limits
from octavo_engine.ipc.vocabulary import Vocabulary
from octavo_engine.worker.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer


logger = logging.getLogger(__name__)


class GrammarError(ValueError):
    """The grammar cannot be compiled; the message is a sentence for the client."""


class _Tokens:
    """What `LLTokenizer` wants of a tokenizer. Text is never tokenised: no grammar of ours forces tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_id: int) -> None:
        known = vocabulary.tokens[:vocab_size]
        self.tokens = known + [b""] * (vocab_size - len(known))
        self.special_token_ids = [token for token in vocabulary.special if token < vocab_size]
        self.eos_token_id = eos_token_id

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("no text is tokenised here")


class GrammarCompiler:
    """Makes grammars over one model's tokens. One thread at a time."""

    def __init__(self, read: Callable[[], Vocabulary], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`read` gives the model's tokens; it is asked once, for the first grammar."""
        self._read = read
        self._vocab_size = vocab_size
        self._eos_token_ids = [token for token in eos_token_ids if 0 <= token < vocab_size]
        self._tokenizer: LLTokenizer | None = None

    def compile(self, grammar: str, count: int) -> list[Grammar]:
        """Return the grammar `count` times, for sequences of their own. Raises GrammarError."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise GrammarError(f"The grammar cannot be compiled: {one_sentence(matcher.get_error())}.")
        return [Grammar(matcher), *(Grammar(matcher.deep_copy()) for _ in range(count - 1))]

    def _tokens(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._make()
        return self._tokenizer

    def _make(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        if not self._eos_token_ids:
            raise GrammarError("This model names no token that ends a text, which a grammar needs.")
        try:
            vocabulary = self._read()
        except (OSError, msgspec.MsgspecError) as error:
            raise GrammarError(f"The model's tokens cannot be read, which a grammar needs ({error}).") from error
        tokens = _Tokens(vocabulary, self._vocab_size, self._eos_token_ids[0])
        return LLTokenizer(tokens, eos_token=self._eos_token_ids)  # type: ignore[arg-type]


class Compiled(NamedTuple):
    """One grammar for each of `sequences`, or what is wrong with it."""

    sequences: tuple[int, ...]
    grammars: tuple[Grammar, ...] = ()
    error: str = ""


class GrammarQueue:
    """Compiles in order, on a thread beside the loop's."""

    def __init__(self, compiler: GrammarCompiler, wake: Callable[[], None]) -> None:
        """`wake` is called on that thread whenever one more is finished."""
        self._compiler = compiler
        self._wake = wake
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._finished: queue.SimpleQueue[Compiled] = queue.SimpleQueue()

    def put(self, sequences: tuple[int, ...], grammar: str) -> None:
        """Compile a grammar for these sequences."""
        self._thread.submit(self._compile, sequences, grammar)

    def finished(self) -> list[Compiled]:
        """Return what has been compiled since the last call, without waiting."""
        found = []
        while not self._finished.empty():
            found.append(self._finished.get())
        return found

    def close(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, sequences: tuple[int, ...], grammar: str) -> None:
        try:
            compiled = Compiled(sequences, tuple(self._compiler.compile(grammar, len(sequences))))
        except GrammarError as error:
            compiled = Compiled(sequences, error=str(error))
        except BaseException:  # a panic of llguidance is no Exception
            logger.exception("A grammar cannot be compiled: its request ends, the others go on")
            compiled = Compiled(sequences, error="The grammar cannot be compiled.")
        self._finished.put(compiled)
        self._wake()
