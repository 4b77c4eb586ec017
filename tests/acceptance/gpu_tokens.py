"""`python -m tests.acceptance.gpu_tokens KIND TOKENS BLOCKS`: mixed requests through both engines, compared.

The GPU engine is on CPU tensors, in Triton's interpreter: TRITON_INTERPRET=1 must be set before it is imported, which
is why this is a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from .running import PYTHON, Ran, run

KINDS: Final = ("llama, adapters", "int4", "gemma 3")
TOKENS: Final = 32
SHORT_TOKENS: Final = 8
BLOCKS: Final = 20
SHORT_BLOCKS: Final = 10
"""Of the GPU engine's cache: fewer than its sequences come to need."""


class Compared(NamedTuple):
    """How many of the requests' tokens are equal, of how many, and what happened on the way."""

    equal: int
    tokens: int
    preemptions: int
    shared_tokens: int


def compare(kind: str, *, short: bool) -> tuple[Ran, Compared | None]:
    """Serve twelve requests through both engines, in another process; None if it failed."""
    count, blocks = (SHORT_TOKENS, SHORT_BLOCKS) if short else (TOKENS, BLOCKS)
    command = [PYTHON, "-m", "tests.acceptance.gpu_tokens", kind, str(count), str(blocks)]
    ran = run(command, environment={"TRITON_INTERPRET": "1"})
    if ran.code:
        return ran, None
    return ran, Compared(**json.loads(ran.output.splitlines()[-1]))


def main(kind: str, count: str, blocks: str) -> None:
    """Print the comparison."""
    from tests.worker.gpu.twelve import write_twice

    with tempfile.TemporaryDirectory() as folder:
        gpu, cpu = write_twice(kind, Path(folder), int(count), int(blocks))
    equal = sum(
        ours == theirs
        for written, expected in zip(gpu.tokens, cpu.tokens, strict=True)
        for ours, theirs in zip(written, expected, strict=False)
    )
    total = sum(map(len, cpu.tokens))
    found = Compared(equal, total, gpu.snapshot.preemptions, gpu.snapshot.prefix_hit_tokens)
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
