"""What can go wrong with a plan, whichever runner executes it."""

from __future__ import annotations

from octavo_engine.core.step import StepPlan


class StepError(RuntimeError):
    """Computing a step raised. Its differences are applied, its rows gave nothing; later steps may run."""

    def __init__(self, plan: StepPlan, cause: Exception, calls: int | None = 0) -> None:
        """Name the step, its rows and the cause.

        calls: of the communicator's before it, alike on all ranks if the ranks are still together; None if the step was
        computed, and only reading its results failed.
        """
        self.number = plan.number
        self.calls = calls
        self.reason = f"{type(cause).__name__}: {cause}"
        self.sequences = tuple(row.sequence for row in plan.rows)
        rows = ", ".join(
            f"sequence {row.sequence} at {row.start}+{row.num_tokens} in slot {row.slot}" for row in plan.rows
        )
        super().__init__(f"Step {plan.number} failed: {type(cause).__name__}: {cause} (rows: {rows})")


class ContractError(RuntimeError):
    """A plan broke the step contract: the batch can no longer be trusted."""
