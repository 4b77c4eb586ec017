"""One progress bar for a person at a terminal, one plain line per step for a log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

console = Console(stderr=True, highlight=False, soft_wrap=True)
QUIET_SECONDS = 20.0  # a log hears from a long step at least this often


class Steps:
    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    @contextmanager
    def step(self, title: str, total: int = 1) -> Iterator["Step"]:
        step = Step(self.bar, title, total)
        yield step
        step.finish()


class Step:
    def __init__(self, bar: Progress | None, title: str, total: int) -> None:
        self.bar, self.title, self.total, self.done = bar, title, total, 0
        self.started = self.spoke = time.monotonic()
        self.task: TaskID | None = bar.add_task(title, total=total) if bar else None

    def advance(self, note: str = "") -> None:
        self.done = min(self.done + 1, self.total)
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, description=f"{self.title} {note}"[:40])
        elif time.monotonic() - self.spoke > QUIET_SECONDS:
            self.spoke = time.monotonic()
            console.print(f"  {self.title}: {self.done} of about {self.total}")

    def finish(self) -> None:
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.total, description=self.title)
        else:
            console.print(f"  {self.title}: done in {time.monotonic() - self.started:.1f} s")
