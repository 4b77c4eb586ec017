"""What the host tells the device before each step: named arrays at fixed addresses, copied without waiting.

A captured graph reads its inputs where it read them when it was captured, so every name has its place on the device for
good. On the host there are as many copies as may be on their way: a copy is written again only once the device has read
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IN_FLIGHT: Final = 3
"""Steps whose inputs may be on their way: two in flight, and the one being written."""


class Staging:
    """Fixed device tensors by name, and pinned host memory through which they are written."""

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
        """Allocate. shapes: of each name its full shape and type; what is written may have fewer rows."""
        self._cuda = device.type == "cuda"
        self.tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
        """The device's tensors, whole."""
        self._host = [
            {name: torch.zeros(shape, dtype=dtype, pin_memory=self._cuda) for name, (shape, dtype) in shapes.items()}
            for _ in range(IN_FLIGHT)
        ]
        self._read: list[Any] = [None] * IN_FLIGHT
        """When the device has read each copy."""
        self._turn = 0

    def begin(self) -> None:
        """Take the next copy of the host's memory, once the device has read what was written to it last."""
        self._turn = (self._turn + 1) % IN_FLIGHT
        if self._read[self._turn] is not None:
            self._read[self._turn].synchronize()

    def write(self, name: str, values: NDArray[Any]) -> Tensor:
        """Queue the copy of an array, of at most the name's rows, and return the device's tensor of its shape.

        Raises ValueError if it does not fit.
        """
        whole, rows = self.tensors[name], len(values)
        if rows > whole.shape[0] or values.shape[1:] != tuple(whole.shape[1:]):
            raise ValueError(f"{name} has room for {tuple(whole.shape)}, not for {values.shape}.")
        source = self._host[self._turn][name][:rows]
        source.numpy()[...] = values
        return whole[:rows].copy_(source, non_blocking=True)

    def end(self) -> None:
        """Note that everything of this turn is queued."""
        if self._cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._read[self._turn] = event


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return a tensor of its own with these values, copied behind what is queued."""
    source = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return source.clone()
    return source.pin_memory().to(device, non_blocking=True)
