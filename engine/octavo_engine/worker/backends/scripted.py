"""The scripted model: an executable without weights whose every token depends on the KV cache it reads.

Each KV slot holds one digest. The digest of position p is made of the digest read through the block table at p - 1, the
token and the position; the logits at p of all digests read through the block tables over the whole context (in a window
group, over the window). A wrong block, a stale slot, an early publication or a wrong position changes the text. It
computes on numpy, takes the time it is told, and fails as it is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.worker.backends.scripted_uri import EOS_TOKEN, ScriptedOptions, parse_scripted_uri
from octavo_engine.worker.executable import KVGroup, ModelStep

_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15
_LETTERS: Final = np.frombuffer(
    b"      eeeeeetttttaaaaooooiiinnnssshhrrdlluucmwfygpbvkxjqzETAOINSRHDLU.,,;:!?'()0123456789-\n", dtype=np.uint8
)
"""What it writes, in about the proportions of English."""
_CANDIDATES: Final = 6
_PEAK: Final = 10.0
_FLOOR: Final = -30.0

_SLOT: Final = np.dtype([("digest", np.uint64), ("poisoned", np.bool_), ("cursor", np.int32)])
_NEVER_WRITTEN: Final = np.array((0xDEAD, False, 0), dtype=_SLOT)


class ScriptedKV:
    """`KVLayout` of one slot record per token: the digest, whether the poison was met, how far the script is."""

    def __init__(self, block_size: int, windows: Sequence[int]) -> None:
        """Describe the cache; `allocate` makes it."""
        self.block_size = block_size
        self.groups = tuple(KVGroup(window, block_size * _SLOT.itemsize) for window in windows)
        self.slots: list[NDArray[Any]] = []
        """Per group, a record per slot [num_blocks * block_size]."""

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate the slots, filled with what no context ever makes."""
        self.slots = [np.full(count * self.block_size, _NEVER_WRITTEN) for count in num_blocks]

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), in order."""
        blocks = self._blocks(group)
        for source, target in pairs:
            blocks[target] = blocks[source]

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block's records."""
        return bytes(self._blocks(group)[block].tobytes())

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned."""
        self._blocks(group)[block] = np.frombuffer(data, dtype=_SLOT)

    def _blocks(self, group: int) -> NDArray[Any]:
        return self.slots[group].reshape(-1, self.block_size)


class ScriptedPlan(NamedTuple):
    """A step, and the moment it is over."""

    step: ModelStep
    deadline: float


class ScriptedExecutable:
    """`Executable` with one layer per KV group. x is the digests of the step's tokens, uint64 [groups, T]."""

    def __init__(self, options: ScriptedOptions) -> None:
        """Prepare the model; the caller allocates its cache (`num_blocks` says how large it is meant to be)."""
        windows = (0, options.window) if options.window else (0,)
        self.options = options
        self.vocab_size = options.vocab
        self.num_layers = len(windows)
        self.max_position = options.max_len
        self.layout = ScriptedKV(options.block_size, windows)
        self.num_blocks = (options.blocks,) * len(windows)
        self.eos_token_ids = (EOS_TOKEN,)
        self._seed = _mix(options.seed, 0, 0)
        self._script = _Script(options.script)

    def plan(self, step: ModelStep) -> ScriptedPlan:
        """Start the clock of the step; fail or hang if a token says so."""
        options = self.options
        if options.hang_token >= 0 and (step.tokens == options.hang_token).any():
            threading.Event().wait()
        if options.raise_token >= 0 and (step.tokens == options.raise_token).any():
            raise RuntimeError(f"the scripted model was told to fail on token {options.raise_token}")
        seconds = options.step + (step.tokens.size / options.prefill if options.prefill else 0.0)
        return ScriptedPlan(step, time.monotonic() + seconds)

    def embed(self, plan: ScriptedPlan) -> NDArray[np.uint64]:
        """Return x, nothing computed yet."""
        return np.zeros((self.num_layers, plan.step.tokens.size), dtype=np.uint64)

    def attend(self, plan: ScriptedPlan, layer: int, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Write the records of the step's tokens into group `layer`, each from the one before it."""
        step, size, cache = plan.step, self.layout.block_size, self.layout.slots[layer]
        offsets, slots = step.row_offsets.tolist(), step.slots[layer].tolist()
        tokens, positions = step.tokens.tolist(), step.positions.tolist()
        digests = [0] * len(tokens)
        written: list[tuple[int, bool, int]] = []
        targets: list[int] = []
        for row, (first, last) in enumerate(pairwise(offsets)):
            digest, poisoned, cursor = self._before(layer, step.block_tables[layer][row], positions[first], cache, size)
            for index in range(first, last):
                if slots[index] < 0:
                    continue
                token = tokens[index]
                digest = _mix(digest, token, positions[index])
                poisoned = poisoned or token == self.options.nan_token
                cursor = self._script.advance(cursor, token)
                digests[index] = digest
                targets.append(slots[index])
                written.append((digest, poisoned, cursor))
        cache[targets] = np.array(written, dtype=_SLOT)
        x[layer] = digests
        return x

    def mlp(self, plan: ScriptedPlan, layer: int, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return x: the text needs no second thought."""
        return x

    def logits(self, plan: ScriptedPlan, x: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the logits [L, vocab_size], once the step has taken its time."""
        step = plan.step
        rows = np.searchsorted(step.row_offsets, step.logit_tokens, side="right") - 1
        logits = np.full((len(rows), self.vocab_size), _FLOOR, dtype=np.float32)
        for index, (row, token) in enumerate(zip(rows.tolist(), step.logit_tokens.tolist(), strict=True)):
            self._write_logits(logits[index], step, row, int(step.positions[token]))
        remaining = plan.deadline - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)  # the stated time of the step, not a wait for anything
        return logits

    def _before(
        self, layer: int, table: NDArray[np.int32], position: int, cache: NDArray[Any], size: int
    ) -> tuple[int, bool, int]:
        """Return the record before `position`, read through the block table."""
        if position == 0:
            return _mix(self._seed, layer, 0), False, 0
        record = cache[int(table[(position - 1) // size]) * size + (position - 1) % size]
        return int(record["digest"]), bool(record["poisoned"]), int(record["cursor"])

    def _write_logits(self, logits: NDArray[np.float32], step: ModelStep, row: int, position: int) -> None:
        state, poisoned, cursor = self._seed, False, 0
        for cache, group, tables in zip(self.layout.slots, self.layout.groups, step.block_tables, strict=True):
            first = max(0, position - group.window + 1) if group.window else 0
            seen = np.arange(first, position + 1)
            size = self.layout.block_size
            records = cache[tables[row][seen // size].astype(np.int64) * size + seen % size]
            weights = (2 * seen + 1).astype(np.uint64)
            state = _mix(state, int((records["digest"] * weights).sum()), position)
            poisoned, cursor = bool(records["poisoned"][-1]), int(records["cursor"][-1])
        if poisoned:
            logits[:] = np.nan
            return
        alternatives = _LETTERS[np.array([(state >> (8 * n)) % len(_LETTERS) for n in range(_CANDIDATES)])]
        logits[alternatives[::-1]] = np.linspace(3.0, 8.0, _CANDIDATES, dtype=np.float32)
        logits[self._next_token(state, cursor, int(alternatives[0]))] = _PEAK

    def _next_token(self, state: int, cursor: int, letter: int) -> int:
        if self.options.script:
            return self._script.token(cursor)
        return EOS_TOKEN if _mix(state, 1, 0) < self.options.eos * _MASK else letter


class _Script:
    """Where a text is in the script: the longest beginning of the script that the text ends with."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        self._fallback = [0] * (len(tokens) + 1)
        for index in range(1, len(tokens)):
            self._fallback[index + 1] = self._step(self._fallback[index], tokens[index])

    def advance(self, cursor: int, token: int) -> int:
        """Return the cursor after one more token."""
        return self._step(cursor, token) if self._tokens else 0

    def token(self, cursor: int) -> int:
        """Return what the script says next, EOS after its end."""
        return self._tokens[cursor] if cursor < len(self._tokens) else EOS_TOKEN

    def _step(self, cursor: int, token: int) -> int:
        while cursor == len(self._tokens) or self._tokens[cursor] != token:
            if cursor == 0:
                return 0
            cursor = self._fallback[cursor]
        return cursor + 1


def build_scripted(uri: str) -> ScriptedExecutable:
    """Return the model of a `scripted://` URI, its cache not yet allocated. Raises ScriptedUriError."""
    return ScriptedExecutable(parse_scripted_uri(uri))


def _mix(state: int, value: int, position: int) -> int:
    """Return 64 bits that depend on all bits of the arguments."""
    state = ((state ^ value) * _ODD + position * 0xD1B54A32D192ED03 + 1) & _MASK
    state ^= state >> 29
    state = (state * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 32)
