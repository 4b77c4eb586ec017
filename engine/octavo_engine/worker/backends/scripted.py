"""The scripted model: an executable without weights whose every token depends on the KV cache it reads.

Each KV slot holds one digest. The digest of position p is made of the digest read through the block table at p - 1, the
token and the position; the logits at p of all digests read through the block tables over the whole context (in a window
group, over the window). A wrong block, a stale slot, an early publication or a wrong position changes the text. The
hidden state at p is the digest's eight bytes. It computes on numpy, takes the time it is told, and fails as it is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.adapter import WEIGHTS
from octavo_engine.model.adapter_config import CONFIG
from octavo_engine.model.digest import model_digest
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.backends.scripted_uri import EOS_TOKEN, ScriptedOptions, parse_scripted_uri
from octavo_engine.worker.executable import ALL, KVGroup, ModelStep

_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15
_LETTERS: Final = b"      eeeeeetttttaaaaooooiiinnnssshhrrdlluucmwfygpbvkxjqzETAOINSRHDLU.,,;:!?'()0123456789-\n"
"""What it writes, in about the proportions of English."""
_CANDIDATES: Final = 6
_CLIMB: Final = np.linspace(3.0, 8.0, _CANDIDATES, dtype=np.float32)
_PEAK: Final = 10.0
_FLOOR: Final = -30.0
_WIDTH: Final = 8

_NEVER_WRITTEN: Final = 0xDEAD


class Slots(NamedTuple):
    """The slots of one KV group, each [num_blocks, block_size].

    digests: uint64. poisoned: bool, the poison was met. cursors: int32, how far the script is.
    """

    digests: NDArray[np.uint64]
    poisoned: NDArray[np.bool_]
    cursors: NDArray[np.int32]


class ScriptedKV:
    """`KVLayout` of a digest and two marks per token."""

    def __init__(self, block_size: int, windows: Sequence[int]) -> None:
        """Describe the cache; `allocate` makes it."""
        self.block_size = block_size
        self.groups = tuple(KVGroup(window, block_size * (8 + 1 + 4)) for window in windows)
        self.slots: list[Slots] = []
        """One per group."""

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate the slots, filled with what no context ever makes."""
        shapes = [(count, self.block_size) for count in num_blocks]
        self.slots = [
            Slots(
                np.full(shape, _NEVER_WRITTEN, dtype=np.uint64),
                np.zeros(shape, dtype=np.bool_),
                np.zeros(shape, dtype=np.int32),
            )
            for shape in shapes
        ]

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), in order."""
        for plane in self.slots[group]:
            for source, target in pairs:
                plane[target] = plane[source]

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block's planes, one after the other."""
        return b"".join(plane[block].tobytes() for plane in self.slots[group])

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned."""
        start = 0
        for plane in self.slots[group]:
            end = start + plane[block].nbytes
            plane[block] = np.frombuffer(data[start:end], dtype=plane.dtype)
            start = end


class ScriptedAdapter(NamedTuple):
    """An adapter: a number that every text begins with."""

    digest: str
    value: int


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
        self.hidden_size = _WIDTH
        self.num_layers = len(windows)
        self.max_position = options.max_len
        self.layout = ScriptedKV(options.block_size, windows)
        self.num_blocks = (options.blocks,) * len(windows)
        self.eos_token_ids = (EOS_TOKEN,)
        self._seed = _mix(options.seed, 0, 0)
        self._weights = 2 * np.arange(options.max_len, dtype=np.uint64) + np.uint64(1)
        self._script = _Script(options.script)
        self._stated_seconds = 0.0
        self._adapters: dict[int, ScriptedAdapter] = {}

    def open_adapter(self, folder: Path) -> ScriptedAdapter:
        """Read an adapter: its files' digest is all it is. Raises UnsupportedModelError."""
        try:
            digest = model_digest((folder / CONFIG, folder / WEIGHTS))
        except OSError as error:
            raise UnsupportedModelError(f"There is no {CONFIG} in {folder}; give an adapter's folder.") from error
        return ScriptedAdapter(digest, int(digest[:16], 16))

    def set_adapter(self, slot: int, adapter: ScriptedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing."""
        if adapter is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = adapter

    def kernel_seconds(self) -> float:
        """Return the time that steps were told to take: what a model would compute in native code."""
        return self._stated_seconds

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

    def forward(self, plan: ScriptedPlan, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return x [layer, T], the digests that every group's records now have."""
        for layer in range(self.num_layers):
            self._attend(plan, layer, x)
        return x

    def _attend(self, plan: ScriptedPlan, layer: int, x: NDArray[np.uint64]) -> None:
        """Write the records of the step's tokens into group `layer`, each from the one before it."""
        step, cache = plan.step, self.layout.slots[layer]
        offsets, slots = step.row_offsets.tolist(), step.slots[layer].tolist()
        tokens, positions = step.tokens.tolist(), step.positions.tolist()
        digests = [0] * len(tokens)
        targets: list[int] = []
        marks: list[tuple[bool, int]] = []
        for row, (first, last) in enumerate(pairwise(offsets)):
            digest, poisoned, cursor = self._before(step, layer, row, positions[first])
            for index in range(first, last):
                if slots[index] < 0:
                    continue
                token = tokens[index]
                digest = digests[index] = _mix(digest, token, positions[index])
                poisoned = poisoned or token == self.options.nan_token
                cursor = self._script.advance(cursor, token)
                targets.append(slots[index])
                marks.append((poisoned, cursor))
        x[layer] = digests
        cache.digests.reshape(-1)[targets] = x[layer, step.slots[layer] >= 0]
        cache.poisoned.reshape(-1)[targets] = [poisoned for poisoned, _ in marks]
        cache.cursors.reshape(-1)[targets] = [cursor for _, cursor in marks]

    def logits(self, plan: ScriptedPlan, x: NDArray[np.uint64], wanted: slice = ALL) -> NDArray[np.float32]:
        """Return the logits [L, vocab_size], once the step has taken its time."""
        step, logit_tokens = plan.step, plan.step.logit_tokens[wanted]
        rows = np.searchsorted(step.row_offsets, logit_tokens, side="right") - 1
        logits = np.full((len(rows), self.vocab_size), _FLOOR, dtype=np.float32)
        for index, (row, token) in enumerate(zip(rows.tolist(), logit_tokens.tolist(), strict=True)):
            self._write_logits(logits[index], step, row, int(step.positions[token]))
        self._take_time(plan)
        return logits

    def last_hidden(self, plan: ScriptedPlan, x: NDArray[np.uint64], tokens: slice) -> NDArray[np.float32]:
        """Return the hidden states [n, 8], from -1 to 1, once the step has taken its time."""
        digests = np.bitwise_xor.reduce(x[:, tokens], axis=0).astype("<u8")
        octets: NDArray[np.uint8] = digests.view(np.uint8).reshape(-1, _WIDTH)
        hidden = octets.astype(np.float32) / np.float32(127.5) - np.float32(1)
        hidden[self.layout.slots[0].poisoned.reshape(-1)[plan.step.slots[0][tokens]]] = np.nan
        self._take_time(plan)
        return hidden

    def _take_time(self, plan: ScriptedPlan) -> None:
        remaining = plan.deadline - time.monotonic()
        if remaining > 0:
            self._stated_seconds += remaining
            time.sleep(remaining)  # the stated time of the step, not a wait for anything

    def _before(self, step: ModelStep, layer: int, row: int, position: int) -> tuple[int, bool, int]:
        """Return the digest and the marks before `position`, read through the block table."""
        cache, table, adapter = self.layout.slots[layer], step.block_tables[layer][row], int(step.adapters[row])
        if position == 0:
            value = self._adapters[adapter].value if adapter >= 0 else 0
            return _mix(self._seed ^ value, layer, 0), False, 0
        index, offset = divmod(position - 1, self.layout.block_size)
        slot = (table[index], offset)
        return int(cache.digests[slot]), bool(cache.poisoned[slot]), int(cache.cursors[slot])

    def _write_logits(self, logits: NDArray[np.float32], step: ModelStep, row: int, position: int) -> None:
        state, poisoned, cursor = self._seed, False, 0
        size = self.layout.block_size
        block, offset = divmod(position, size)
        for cache, group, tables in zip(self.layout.slots, self.layout.groups, step.block_tables, strict=True):
            table = tables[row]
            first = max(0, position - group.window + 1) if group.window else 0
            seen = cache.digests[table[first // size : block + 1]].reshape(-1)
            seen = seen[first % size : first % size + position + 1 - first]
            state = _mix(state, int(seen @ self._weights[first : position + 1]), position)
            poisoned, cursor = bool(cache.poisoned[table[block], offset]), int(cache.cursors[table[block], offset])
        if poisoned:
            logits[:] = np.nan
            return
        letters = [_LETTERS[(state >> (8 * n)) % len(_LETTERS)] for n in range(_CANDIDATES)]
        logits[letters[::-1]] = _CLIMB
        logits[self._next_token(state, cursor, letters[0])] = _PEAK

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
