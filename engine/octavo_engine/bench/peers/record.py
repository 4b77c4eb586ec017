"""What is known of a comparison so far: written after each run, shown at the end, be it whole or cut short."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo_engine.bench.machine import Machine
from octavo_engine.bench.peers import serving, tables
from octavo_engine.bench.peers.measure import Measured
from octavo_engine.bench.peers.notes import Notes
from octavo_engine.bench.report import Report, Table, show, write_json


class Record:
    """A report that grows."""

    def __init__(
        self, machine: Machine, configuration: Mapping[str, Any], notes: Notes, json_file: Path | None
    ) -> None:
        """Know nothing yet. Nothing is written before there is a figure: an earlier report may lie at the path."""
        self.configuration = dict(configuration)
        self.perplexities: dict[str, float | None] = {}
        self._machine = machine
        self._notes = notes
        self._json_file = json_file
        self._measured: Measured | None = None
        self._served: serving.Serving | None = None
        self._complete = False

    def keep_points(self, measured: Measured) -> None:
        """Take in what the points have given so far, and write it."""
        self._measured = measured
        self._write()

    def keep_servers(self, served: serving.Serving) -> None:
        """Take in what the servers have given so far, and write it."""
        self._served = served
        self._write()

    @property
    def empty(self) -> bool:
        """Whether there is no figure at all."""
        points = self._measured is not None and bool(self._measured.figures)
        return not points and not (self._served is not None and self._served.saturations)

    def report(self) -> Report:
        """Return what is known."""
        shown: list[Table] = []
        figures: dict[str, Any] = {}
        if self._measured is not None:
            compared = tables.compare(self._measured, self.perplexities)
            shown, figures["in_process"] = tables.tables(self._measured, compared), compared
        if self._served is not None:
            shown, figures["served"] = [*shown, serving.table(self._served)], self._served
        if self._notes.left_out:
            shown = [*shown, tables.left_out(self._notes.left_out)]
        figures["left_out"] = self._notes.left_out
        return Report("peers", self._machine, self.configuration, shown, figures, self._complete)

    @contextmanager
    def until_complete(self) -> Iterator[None]:
        """Measure within it: whatever cuts it short, what is known is shown and written before that goes on."""
        try:
            yield
        except BaseException as error:
            what = "Interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "Ended early"
            print(f"octavo bench: {what}: {self._cut_short()}", file=sys.stderr, flush=True)
            raise
        self._complete = True

    def _cut_short(self) -> str:
        """Show and write what is known; say where it is."""
        if self.empty:
            return "nothing was measured yet."
        self._write()
        show(self.report())
        where = f' and in {self._json_file.absolute()} with "complete": false' if self._json_file is not None else ""
        return f"what was measured until then is above{where}."

    def _write(self) -> None:
        """Write it if that is wanted; a device or a pipe is for the end alone.

        A file that cannot be written now is said, and no end of the measuring: the end tries once more.
        """
        path = self._json_file
        if path is None or self.empty or (path.exists() and not path.is_file()):
            return
        try:
            write_json(path, self.report())
        except OSError as error:
            self._notes.say(f"{path} cannot be written: {error.strerror}")
