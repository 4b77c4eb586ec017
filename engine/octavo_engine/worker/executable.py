"""The seam between the engine and a model: `Executable` (what a backend gives) and `KVLayout` (the cache it owns)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ALL: Final = slice(None)


class KVGroup(NamedTuple):
    """Layers that share one block table. `window` is the attention window in tokens, 0 for full attention."""

    window: int
    bytes_per_block: int


class Needs(NamedTuple):
    """What a checkpoint's header says of the memory it will take, in bytes, and of its cache's groups.

    weight_bytes: its packed weights. table_bytes: its rotary factors, which grow with the longest context.
    max_position: the longest context in tokens it was made for.
    """

    weight_bytes: int
    table_bytes: int
    groups: tuple[KVGroup, ...]
    max_position: int


class KVLayout(Protocol):
    """A backend's KV cache. A block is opaque bytes to everybody else: 16 tokens over all layers of its group."""

    block_size: int
    groups: tuple[KVGroup, ...]

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate and touch `num_blocks[g]` blocks for each group. Raises MemoryError if they cannot be had."""
        ...

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of a group, in order."""
        ...

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block over all layers of its group."""
        ...

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned."""
        ...


class ModelStep(NamedTuple):
    """One step as a model sees it: T tokens of R rows, flattened row after row.

    tokens, positions: int32 [T]. row_offsets: int32 [R + 1], row r owns tokens row_offsets[r]:row_offsets[r + 1].
    context_lengths: int32 [R], tokens in the cache once this step is written. block_tables: per group int32
    [R, max_blocks], -1 where unused or freed behind a window. slots: per group int64 [T], block * block_size + offset;
    -1 for padding, which is computed and written nowhere. logit_tokens: int32 [L], the tokens whose logits are wanted:
    those that are sampled from, row after row, then those that score their successor. adapters: int32 [R], -1 for none.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_offsets: NDArray[np.int32]
    context_lengths: NDArray[np.int32]
    block_tables: tuple[NDArray[np.int32], ...]
    slots: tuple[NDArray[np.int64], ...]
    logit_tokens: NDArray[np.int32]
    adapters: NDArray[np.int32]


class OpenedAdapter(Protocol):
    """A LoRA adapter in a backend's own form."""

    @property
    def digest(self) -> str:
        """Of its content: what tells its cached blocks from those of others."""
        ...


class Served(Protocol):
    """What the engine knows of any model that it serves, whatever computes it."""

    vocab_size: int
    hidden_size: int
    max_position: int

    @property
    def layout(self) -> KVLayout:
        """The KV cache this model reads and writes."""
        ...

    def open_adapter(self, folder: Path) -> OpenedAdapter:
        """Read a LoRA adapter, which takes a while: on any thread, beside steps. Raises UnsupportedModelError."""
        ...


class Executable(Served, Protocol):
    """Spec + weights, ready to run. Each method once per step; x is the backend's own array [T, d].

    A row's arithmetic depends on that row's own tokens only, whatever the other rows are.
    """

    def kernel_seconds(self) -> float:
        """Return the wall seconds spent inside native code since the start, 0.0 if that is not counted."""
        ...

    def set_adapter(self, slot: int, adapter: Any | None) -> None:
        """Make `slot` of the steps to come mean an adapter that was opened here, or nothing. Between two steps."""
        ...

    def plan(self, step: ModelStep) -> Any:
        """Prepare what all layers share (masks, indices, rotary factors)."""
        ...

    def embed(self, plan: Any) -> Any:
        """Return x of the step's tokens, before the first layer."""
        ...

    def forward(self, plan: Any, x: Any) -> Any:
        """Return x after the last layer; what its tokens leave in the cache is written."""
        ...

    def logits(self, plan: Any, x: Any, wanted: slice = ALL) -> NDArray[np.float32]:
        """Return float32 [L, vocab_size] for the step's `logit_tokens[wanted]`, valid until the next call."""
        ...

    def last_hidden(self, plan: Any, x: Any, tokens: slice) -> NDArray[np.float32]:
        """Return float32 [n, hidden_size], x of the step's `tokens` behind the final norm: what the head would see."""
        ...
