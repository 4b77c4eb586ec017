"""Grammars are compiled once before the engine sees them, in a process of their own that may take so much and no more.

A compiler's work cannot be broken off from inside, and what it needs cannot be told from what it is given.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import threading
import time
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from octavo_engine.ipc.grammar_limits import one_sentence, parser_limits
from octavo_engine.server.grammar import serialised
from octavo_engine.server.protocol.constraints import Constraint

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CPU_SECONDS: Final = 2
WALL_SECONDS: Final = 10.0
"""Generous because the engine's threads go first on a busy machine."""
_LOOK_SECONDS: Final = 0.05
MEMORY_BYTES: Final = 128 * 1024 * 1024
STACK_BYTES: Final = 4 * 1024 * 1024
"""Less than a thread of the engine has, so that no depth that passes here overflows there."""
REMEMBERED: Final = 32
_PR_SET_PDEATHSIG: Final = 1
_ACCEPTED, _REFUSED = b"+", b"-"


class GrammarRefused(Exception):
    """The grammar cannot be compiled, or takes too much; the message continues a sentence that begins with the field's
    name."""


class Allowance(NamedTuple):
    """What compiling one grammar may take."""

    cpu_seconds: int = CPU_SECONDS
    wall_seconds: float = WALL_SECONDS
    memory_bytes: int = MEMORY_BYTES


class GrammarChecker:
    """Compiles constraints and remembers the last it accepted."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        """`allowance` bounds each compilation."""
        self._allowance = allowance or Allowance()
        self._accepted: OrderedDict[tuple[str, str], str] = OrderedDict()

    def check(self, constraint: Constraint) -> str:
        """Return the constraint as the engine takes it. Raises GrammarRefused."""
        key = (constraint.kind, constraint.text)
        grammar = self._accepted.pop(key, None) or _compile_apart(constraint, self._allowance)
        self._accepted[key] = grammar
        if len(self._accepted) > REMEMBERED:
            self._accepted.popitem(last=False)
        return grammar


class _Bytes:
    """What `LLTokenizer` wants of a tokenizer: a token for every byte, and one that ends a text."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<|no token of a grammar|>"]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _byte_tokens() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer(_Bytes())  # type: ignore[arg-type]


def compile_here(constraint: Constraint) -> tuple[str, str]:
    """Return the grammar, and what is wrong with it (empty: nothing)."""
    from llguidance import LLMatcher

    try:
        grammar = serialised(constraint)
    except ValueError as error:
        return "", str(error)
    matcher = LLMatcher(_byte_tokens(), grammar, log_level=0, limits=parser_limits())
    if matcher.is_error():
        return grammar, one_sentence(matcher.get_error())
    # What nothing at all can satisfy shows only when it is asked what may come first.
    matcher.compute_bitmask()
    if not matcher.is_error():
        return grammar, ""
    fault = one_sentence(matcher.get_error())
    return grammar, "no text satisfies it" if fault.startswith("NoExtension") else fault


def _compile_apart(constraint: Constraint, allowance: Allowance) -> str:
    _byte_tokens()  # made once, here
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_the_child(constraint, writer, allowance)
    os.close(writer)
    try:
        answer = _read(reader, time.monotonic() + allowance.wall_seconds)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer[:1] == _ACCEPTED:
        return answer[1:].decode()
    if answer[:1] == _REFUSED:
        raise GrammarRefused(f"cannot be compiled: {answer[1:].decode()}")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU):
        raise GrammarRefused("takes too long to compile: make it simpler")
    raise GrammarRefused("takes too much memory to compile: make it simpler")


def _read(reader: int, deadline: float) -> bytes:
    """Return what the child wrote before it ended, nothing if it has not ended in time."""
    pieces: list[bytes] = []
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while True:
        # In small pieces: this process is watched, and what only waits looks as if it were stuck.
        while not poll.poll(_LOOK_SECONDS * 1000):
            if time.monotonic() > deadline:
                return b""
        piece = os.read(reader, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _be_the_child(constraint: Constraint, writer: int, allowance: Allowance) -> NoReturn:
    """Compile within the allowance, write the answer, and end. Whatever goes wrong shows by its absence."""
    try:
        gc.disable()
        faulthandler.disable()
        # What is wrong is told to whoever sent it: no client may fill the log.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (allowance.cpu_seconds, allowance.cpu_seconds + 1))
        _limit_memory(allowance.memory_bytes)
        answer: list[bytes] = []
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=lambda: answer.append(_answer(constraint)))
        thread.start()
        thread.join()
        with os.fdopen(writer, "wb") as stream:
            stream.write(answer[0])
        os._exit(0)
    finally:
        os._exit(1)


def _answer(constraint: Constraint) -> bytes:
    grammar, fault = compile_here(constraint)
    return _REFUSED + fault.encode() if fault else _ACCEPTED + grammar.encode()


def _limit_memory(more: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit: Any = _data_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _data_bytes() -> int:
    """Return the private writable memory of this process, which `RLIMIT_DATA` bounds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
