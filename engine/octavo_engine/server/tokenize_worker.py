"""A tokenising process: reads jobs on standard input, answers on standard output, ends when its input ends.

Run as `python -m octavo_engine.server.tokenize_worker SOURCE NICE`; SOURCE is what `load_tokenizer` takes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import BinaryIO, Final

from octavo_engine.ipc.signals import leave_to_parent
from octavo_engine.server import frames
from octavo_engine.server.errors import SERVER
from octavo_engine.server.grammar_check import GrammarChecker
from octavo_engine.server.jobs import JobResult, Refusal
from octavo_engine.server.prepare import prepare
from octavo_engine.server.tokenizer import TextModel, TokenizerError, load_tokenizer

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _answer(job_frame: tuple[bytes, bytes], text_model: TextModel, grammars: GrammarChecker) -> JobResult:
    job = frames.read_job(*job_frame)
    try:
        return prepare(job, text_model, grammars)
    except Exception:
        log.exception("A request to %s could not be prepared", job.route)
        return Refusal(500, "The request could not be prepared: the server's log says why.", SERVER, None, None)


def serve(source: str, incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Load the tokenizer, say so, then answer jobs one by one until the input ends."""
    try:
        text_model = load_tokenizer(source)
    except (TokenizerError, OSError) as error:
        outgoing.write(frames.result_frame(frames.Hello(str(error))))
        outgoing.flush()
        return
    outgoing.write(frames.result_frame(frames.Hello()))
    outgoing.flush()
    grammars = GrammarChecker()
    while True:
        try:
            head_size, body_size = frames.LENGTHS.unpack(_read(incoming, frames.LENGTHS.size))
            frame = _read(incoming, head_size), _read(incoming, body_size)
        except EOFError:
            return
        result = _answer(frame, text_model, grammars) if head_size else frames.Hello()
        outgoing.write(frames.result_frame(result))
        outgoing.flush()


def main() -> None:
    """Set the process up: it dies with its parent, leaves its signals to it, and yields to the engine."""
    source, nice = sys.argv[1:]
    leave_to_parent()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(int(nice))
    # What anybody prints goes to standard error: standard output carries frames.
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        serve(source, sys.stdin.buffer, outgoing)
    except BrokenPipeError:
        log.debug("The API process has gone.")


if __name__ == "__main__":
    main()
