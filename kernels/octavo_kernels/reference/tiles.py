"""The construction behind row invariance: every product sees the same shapes, however many rows there are.

A matrix library picks its blocking, and with it the order of its sums, by the shapes it is given. So nothing here ever
computes on "all rows": rows are cut into tiles of `TILE_ROWS`, the last one padded, output features into fixed chunks,
and each product is one tile by one chunk on one thread. Shapes then depend on the model alone; batch size, chunking and
the number of threads decide only who computes a tile and when. What remains is that a row's place within its tile must
not matter, which `selfcheck.py` verifies on the machine it runs on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

import torch
from torch import Tensor

TILE_ROWS: Final = 16
_CHUNK_FEATURES: Final = 512
_CHUNK_ALIGNMENT: Final = 16


class Workers:
    """Runs independent work items on `threads` threads (the caller's is one), each of which computes alone."""

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"At least 1 thread is needed, not {threads}.")
        self.threads = threads
        self._pool = (
            ThreadPoolExecutor(threads - 1, "octavo-reference", initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )

    def run(self, count: int, work: Callable[[int], None]) -> None:
        """Call `work(item)` for every item below `count`, in no particular order; the first error is raised."""
        helpers = min(self.threads, count) - 1
        if self._pool is None or helpers < 1:
            for item in range(count):
                work(item)
            return
        lock, following = threading.Lock(), iter(range(count))

        def drain() -> None:
            while True:
                with lock:
                    item = next(following, None)
                if item is None:
                    return
                work(item)

        futures = [self._pool.submit(drain) for _ in range(helpers)]
        try:
            drain()
        finally:
            wait(futures)
        for future in futures:
            future.result()


SERIAL: Final = Workers(1)


def start_workers(threads: int) -> Workers:
    """Return workers, and switch torch's own threads off for the whole process.

    torch's would split within a product, and on a busy machine each of their hundreds of fork-joins a step waits for
    the slowest core.
    """
    torch.set_num_threads(1)
    return Workers(threads)


def padded_rows(rows: int) -> int:
    """Return `rows` rounded up to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def pad(x: Tensor) -> Tensor:
    """Return [T, …] with zero rows appended up to whole tiles; a tensor of whole tiles is returned as it is."""
    missing = padded_rows(x.shape[0]) - x.shape[0]
    return x if missing == 0 else torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


def tile(index: int) -> slice:
    """Return the rows of one tile."""
    return slice(index * TILE_ROWS, (index + 1) * TILE_ROWS)


def feature_chunks(features: int) -> tuple[slice, ...]:
    """Cut output features into equal chunks of about 512, at least two: the grain that threads share work by."""
    parts = max(2, -(-features // _CHUNK_FEATURES))
    width = -(-features // (parts * _CHUNK_ALIGNMENT)) * _CHUNK_ALIGNMENT
    return tuple(slice(low, min(low + width, features)) for low in range(0, features, width))
