"""What the ranks of one model tell one another on their devices: sums, parts of logits, sampled tokens.

Every rank calls the same methods in the same order with equal shapes; that order is all that ties a call on one rank
to those on the others.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from octavo_engine.worker.gpu.sharding import Shard, vocabulary_width

STORE_FILE: Final = "ranks.store"
"""Where ranks find one another, in a folder that only their owner enters."""
LOOPBACK: Final = "lo"
PATIENCE: Final = timedelta(hours=1)
"""For one rank to come where the others are. Whoever starts the ranks watches them: this is for nobody else."""


class Communicator(Protocol):
    """The link to the other ranks. Tensors are on the rank's device; nothing waits for it."""

    rank: int
    size: int
    calls: int
    """How many calls of the methods below were made: ranks that failed behind equally many may go on together."""

    def all_reduce(self, x: Tensor) -> None:
        """Make `x` the sum of all ranks' `x`."""
        ...

    def all_gather_columns(self, x: Tensor, out: Tensor) -> None:
        """Make out [L, V] of the columns of every rank, side by side; `x` [L, n] holds this rank's.

        n is ceil(V / size), or, on the last ranks, what is left of V (`sharding.vocabulary_rows`).
        """
        ...

    def broadcast(self, x: Tensor) -> None:
        """Make `x` what it is on rank 0."""
        ...

    def least(self, value: int) -> int:
        """Return the least of all ranks' values. Waits for the other ranks: for starting, not for steps."""
        ...

    def barrier(self) -> None:
        """Wait until every rank is here."""
        ...

    def close(self) -> None:
        """Leave the others."""
        ...


class Alone:
    """The only rank: everything is there already."""

    rank = 0
    size = 1
    calls = 0

    def all_reduce(self, x: Tensor) -> None:
        """`x` is the sum."""

    def all_gather_columns(self, x: Tensor, out: Tensor) -> None:
        """Copy the only part, if it is not in place."""
        if x.data_ptr() != out.data_ptr():
            out.copy_(x)

    def broadcast(self, x: Tensor) -> None:
        """`x` is rank 0's."""

    def least(self, value: int) -> int:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Everybody is here."""

    def close(self) -> None:
        """There is nobody to leave."""


ALONE: Final[Communicator] = Alone()


class TorchCommunicator:
    """Ranks on one machine, over `torch.distributed`: NCCL between GPUs, gloo between processes on CPU tensors.

    NCCL's calls are queued behind what the current stream computes, and may be captured in a CUDA graph (which counts
    `calls` when it is captured only). A sum of more than two parts depends on the order they are added in, which a
    library picks by the size of the whole tensor: `invariant` adds them in the order of the ranks, at the price of
    sending `size` times as much.
    """

    def __init__(self, shard: Shard, device: torch.device, folder: Path, *, invariant: bool = False) -> None:
        """Meet the other ranks in `folder`, which is as new as they are. Waits for them.

        Raises RuntimeError (torch.distributed.DistError among them) if they cannot be met.
        """
        self.rank, self.size = shard
        self.calls = 0
        self._device = device
        self._in_order = invariant and shard.size > 2
        # Nobody else on the network has a part in this; whoever knows better has said so.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{folder / STORE_FILE}",
            rank=shard.rank,
            world_size=shard.size,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
        self.barrier()

    def all_reduce(self, x: Tensor) -> None:
        """Make `x` the sum of all ranks' `x`."""
        self.calls += 1
        if not self._in_order:
            dist.all_reduce(x)
            return
        parts = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(parts.view(self.size * x.shape[0], *x.shape[1:]), x.contiguous())
        total = parts[0].to(torch.float32)
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def all_gather_columns(self, x: Tensor, out: Tensor) -> None:
        """Make out [L, V] of every rank's columns. Raises ValueError if `x` is not this rank's part of V."""
        self.calls += 1
        rows, vocab_size = out.shape
        width = vocabulary_width(vocab_size, self.size)
        own = min(width, max(0, vocab_size - self.rank * width))
        if x.shape[0] != rows or x.shape[1] not in (own, width):
            raise ValueError(
                f"Rank {self.rank} of {self.size} has {own} of {vocab_size} columns of {rows} rows: give those, "
                f"not {x.shape[1]} of {x.shape[0]}."
            )
        if x.shape[1] < width:
            x = torch.nn.functional.pad(x, (0, width - x.shape[1]))
        parts = x.new_empty((self.size * rows, width))
        dist.all_gather_into_tensor(parts, x.contiguous())
        beside = parts.view(self.size, rows, width).transpose(0, 1).reshape(rows, self.size * width)
        out.copy_(beside[:, :vocab_size])

    def broadcast(self, x: Tensor) -> None:
        """Make `x` what it is on rank 0."""
        self.calls += 1
        dist.broadcast(x, src=0)

    def least(self, value: int) -> int:
        """Return the least of all ranks' values."""
        self.calls += 1
        held = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held.item())

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.least(0)

    def close(self) -> None:
        """Leave the others, who leave too."""
        dist.destroy_process_group()
