"""What a comparison shows while it runs: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from prequential.runs.job import read_progress

if TYPE_CHECKING:
    from prequential.runs.pool import Cell

LINE_SECONDS = 10.0  # how often a line is printed where there is no terminal to draw on
ORDER = ("running", "failed", "finished", "waiting")  # which cells are shown first where there is no room for all
COLOURS = {"running": "cyan", "failed": "red", "finished": "green", "waiting": "dim"}


class LiveView:
    """A picture that is redrawn in its place while the block lasts, where there is a terminal to draw on.

    Parameters
    ----------
    console
        Where to show it.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None  # stays None where there is no terminal

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(text)


class Watching(LiveView):
    """Shows how far each cell is.

    Parameters
    ----------
    cells
        All cells of the comparison.
    console
        Where to show them.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        super().__init__(console)
        self.cells = cells
        self._states: dict[Cell, str] = {}
        self._printed = time.monotonic()

    def update(self, running: Container[Cell] = ()) -> None:
        """Looks at what the cells have told, and shows it."""
        told = {cell: self._look(cell, cell in running) for cell in self.cells}
        if self._live is not None:
            self._live.update(self._table(told), refresh=True)
            return
        now = time.monotonic()
        due = now - self._printed >= LINE_SECONDS
        for cell, progress in told.items():
            before, state = self._states.get(cell, "waiting"), progress["state"]
            first = cell not in self._states and state == "finished"  # by an earlier go
            if due if state == "running" else state != before and not first:
                self.console.print(_line(cell, progress), soft_wrap=True, highlight=False, markup=False)
            self._states[cell] = state
        if due:
            self._printed = now

    def _look(self, cell: Cell, running: bool) -> dict[str, Any]:
        progress = read_progress(cell.directory)
        state = progress.get("state", "waiting")
        if running:
            state = "running"
        elif state in ("running", "stopped"):  # by an earlier go
            state = "waiting"
        return {**progress, "state": state}

    def _table(self, told: dict[Cell, dict[str, Any]]) -> Table:
        states = [progress["state"] for progress in told.values()]
        caption = ", ".join(f"{states.count(state)} {state}" for state in ORDER if state in states)
        room = max(self.console.height - 6, 5)
        shown = list(told)
        if len(shown) > room:
            first = sorted(shown, key=lambda cell: ORDER.index(told[cell]["state"]))[:room]
            shown = [cell for cell in shown if cell in first]
            caption += f"; {len(shown)} of {len(told)} shown"
        table = Table(caption=caption, caption_justify="left", box=None, header_style="bold", pad_edge=False)
        for heading in ("learner", "stream", "seed", "examples", "examples/s", "accuracy", "log-loss", "state"):
            left = heading in ("learner", "stream", "state")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
        for cell in shown:
            texts = _texts(told[cell])
            texts[-1] = f"[{COLOURS[told[cell]['state']]}]{escape(texts[-1])}[/]"
            table.add_row(escape(cell.learner), escape(cell.stream), str(cell.seed), *texts)
        return table


def _texts(progress: dict[str, Any]) -> list[str]:
    """Examples, examples/s, accuracy, log-loss and state, as they are shown."""
    state = f"failed: {progress.get('why', '')}" if progress["state"] == "failed" else progress["state"]
    if "length" not in progress:
        return ["", "", "", "", state]
    accuracy, loss = progress.get("accuracy"), progress.get("log_loss")
    return [
        f"{progress['position']:,}/{progress['length']:,}",
        f"{progress['rate']:,.0f}" if "rate" in progress else "",
        "" if accuracy is None else f"{accuracy:.1%}",
        "" if loss is None else f"{loss:.3f}",
        state,
    ]


def _line(cell: Cell, progress: dict[str, Any]) -> str:
    examples, rate, accuracy, loss, state = _texts(progress)
    parts = [
        f"{cell.learner} on {cell.stream}, seed {cell.seed}:",
        examples,
        rate and f"{rate} examples/s",
        accuracy and f"accuracy {accuracy}",
        loss and f"log-loss {loss}",
        state,
    ]
    return "  ".join(part for part in parts if part)
