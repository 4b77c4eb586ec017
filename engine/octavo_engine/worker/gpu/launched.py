"""A step that is queued on the device, and what it gave once it has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo_engine.core.step import RowResult, StepPlan, StepResult
from octavo_engine.worker.failures import ContractError, StepError


class Readback:
    """Tensors on their way to pinned host memory, without anybody waiting for them."""

    def __init__(self, device: torch.device) -> None:
        """Nothing is on its way yet."""
        self._cuda = device.type == "cuda"
        self._event: Any = None

    def take(self, values: Tensor) -> Tensor:
        """Return a host tensor that will hold `values` once `wait` has returned."""
        if not self._cuda:
            return values.clone()
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def sent(self) -> None:
        """Everything that is wanted is queued."""
        if self._cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> None:
        """Wait for the device. Raises what went wrong there."""
        if self._event is not None:
            self._event.synchronize()


class Outcome(NamedTuple):
    """How a queued step's results are made: `read` is called once the device is done."""

    readback: Readback
    read: Callable[[], tuple[RowResult, ...]]


class Launched:
    """One plan in flight. Results are asked for in the order of the plans."""

    def __init__(self, plan: StepPlan, finished: Callable[[Launched], None]) -> None:
        """`finished` is called once, when the step has ended."""
        self.plan = plan
        self.outcome: Outcome | None = None
        """None: there is nothing to read."""
        self.error: StepError | None = None
        self._finished = finished
        self._rows: tuple[RowResult, ...] | None = None

    def result(self) -> StepResult:
        """Wait for the step and return its results. Raises StepError if computing it failed, and ContractError."""
        self.finish()
        if self.error is not None:
            raise self.error
        return StepResult(self.plan.number, self._rows or ())

    def finish(self) -> None:
        """Wait for the step, and let what follows its tokens follow them. Again: nothing."""
        if self._rows is not None:
            return
        self._rows = ()
        try:
            self._rows = self._read()
        except StepError as error:
            self.error = error
        finally:
            self._finished(self)

    def _read(self) -> tuple[RowResult, ...]:
        if self.error is not None or self.outcome is None:
            return ()
        try:
            self.outcome.readback.wait()
        except Exception as error:
            raise StepError(self.plan, error) from error
        try:
            return self.outcome.read()
        except ContractError:
            raise
        except Exception as error:
            raise StepError(self.plan, error, calls=None) from error
