"""Progress of many jobs: a live table on a terminal, printed lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from prequential.runs.job import Job, read_progress

LINE_SECONDS = 10.0  # how often a line is printed where there is no terminal to draw on
ORDER = ("running", "failed", "finished", "waiting")  # which jobs are shown first where there is no room for all
COLORS = {"running": "cyan", "failed": "red", "finished": "green", "waiting": "dim"}


class LiveDisplay:
    """Something that is redrawn in place within a `with` block, where the output is a terminal.

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

    def print(self, text: str) -> None:
        self.console.print(text)


class JobsDisplay(LiveDisplay):
    """Shows the progress of each job.

    Parameters
    ----------
    jobs
        All jobs of the comparison.
    console
        Where to show them.
    """

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        super().__init__(console)
        self.jobs = jobs
        self._states: dict[Job, str] = {}
        self._printed = time.monotonic()

    def update(self, running: Container[Job] = ()) -> None:
        """Reads the progress of all jobs and shows it."""
        by_job = {job: self._look(job, job in running) for job in self.jobs}
        if self._live is not None:
            self._live.update(self._table(by_job), refresh=True)
            return
        now = time.monotonic()
        due = now - self._printed >= LINE_SECONDS
        for job, progress in by_job.items():
            before, state = self._states.get(job, "waiting"), progress["state"]
            first = job not in self._states and state == "finished"  # in an earlier session
            if due if state == "running" else state != before and not first:
                self.console.print(_line(job, progress), soft_wrap=True, highlight=False, markup=False)
            self._states[job] = state
        if due:
            self._printed = now

    def _look(self, job: Job, running: bool) -> dict[str, Any]:
        progress = read_progress(job.directory)
        state = progress.get("state", "waiting")
        if running:
            state = "running"
        elif state in ("running", "stopped"):  # in an earlier session
            state = "waiting"
        return {**progress, "state": state}

    def _table(self, by_job: dict[Job, dict[str, Any]]) -> Table:
        states = [progress["state"] for progress in by_job.values()]
        caption = ", ".join(f"{states.count(state)} {state}" for state in ORDER if state in states)
        room = max(self.console.height - 6, 5)
        shown = list(by_job)
        if len(shown) > room:
            first = sorted(shown, key=lambda job: ORDER.index(by_job[job]["state"]))[:room]
            shown = [job for job in shown if job in first]
            caption += f"; {len(shown)} of {len(by_job)} shown"
        table = Table(caption=caption, caption_justify="left", box=None, header_style="bold", pad_edge=False)
        for heading in ("learner", "stream", "seed", "examples", "examples/s", "accuracy", "log-loss", "state"):
            left = heading in ("learner", "stream", "state")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
        for job in shown:
            texts = _texts(by_job[job])
            texts[-1] = f"[{COLORS[by_job[job]['state']]}]{escape(texts[-1])}[/]"
            table.add_row(escape(job.learner), escape(job.stream), str(job.seed), *texts)
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


def _line(job: Job, progress: dict[str, Any]) -> str:
    examples, rate, accuracy, loss, state = _texts(progress)
    parts = [
        f"{job.learner} on {job.stream}, seed {job.seed}:",
        examples,
        rate and f"{rate} examples/s",
        accuracy and f"accuracy {accuracy}",
        loss and f"log-loss {loss}",
        state,
    ]
    return "  ".join(part for part in parts if part)
