"""What a sweep shows while it runs: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from prequential.plots.pareto import front_of
from prequential.runs.formatting import format_duration, format_metric
from prequential.runs.job import read_progress
from prequential.runs.jobs_display import LiveDisplay
from prequential.sweeps.plan import OBJECTIVES, Point, SweepPlan, say_value
from prequential.sweeps.running_trial import RunningTrial
from prequential.sweeps.study import Row

SHOW_SECONDS = 0.5
COLORS = {"running": "cyan", "failed": "red", "done": "green"}


class SweepDisplay(LiveDisplay):
    """Shows the trials done, the best so far, and the time left.

    Parameters
    ----------
    plan
        The sweep.
    total
        How many trials there will be.
    console
        Where to show them.
    """

    def __init__(self, plan: SweepPlan, total: int, console: Console) -> None:
        super().__init__(console)
        self.plan, self.total = plan, total
        self._rows: list[Row] = []
        self._states: dict[int, str] | None = None
        self._begun = time.monotonic()
        self._first: float | None = None  # how much was done at the beginning
        self._shown = 0.0

    def update(self, rows: list[Row] | None, active: list[RunningTrial]) -> None:
        """Shows the state of all trials.

        Parameters
        ----------
        rows
            All trials; None where nothing has changed.
        active
            The trials that this worker is running.
        """
        if rows is not None:
            self._rows = rows
        if self._live is not None:
            if rows is not None or time.monotonic() - self._shown >= SHOW_SECONDS:
                self._live.update(self._table(active), refresh=True)
                self._shown = time.monotonic()
        elif rows is not None:
            self._print_news(active)

    def _print_news(self, active: list[RunningTrial]) -> None:
        ended = {row.number: row for row in self._rows if row.state in ("done", "failed")}
        left = self._left(active)
        if self._states is not None:  # what an earlier session has done is not printed again
            for number in ended.keys() - self._states.keys():
                row = ended[number]
                text = f"{row.number}: {say_point(row.point)}  {self._outcome(row)}"
                self.console.print(
                    f"trial {text}  ({self.summary()}{left})", soft_wrap=True, highlight=False, markup=False
                )
        self._states = {number: row.state for number, row in ended.items()}

    def summary(self) -> str:
        """How many trials are done, and the best of them."""
        states = [row.state for row in self._rows]
        texts = [f"{states.count('done')} of {self.total} trials done"]
        texts += [f"{states.count(state)} {state}" for state in ("running", "failed") if state in states]
        done = [row for row in self._rows if row.state == "done"]
        more = [OBJECTIVES[name] for name in self.plan.objectives]
        if done and len(more) == 1:
            best = (max if more[0] else min)(done, key=lambda row: row.values[0])
            texts.append(f"best {self._outcome(best)} in trial {best.number}")
        elif done:
            texts.append(f"{len(front_of([row.values for row in done], more))} on the Pareto front")
        return ", ".join(texts)

    def _outcome(self, row: Row) -> str:
        if row.state != "done":
            return f"failed: {row.why}"
        pairs = zip(self.plan.objectives, row.values, strict=True)
        return ", ".join(f"{name} {format_metric(name, value)}" for name, value in pairs)

    def _left(self, active: list[RunningTrial]) -> str:
        """The time left at the rate of this session, running trials counted in part."""
        ended = sum(row.state in ("done", "failed") for row in self._rows)
        done = ended + sum(trial.fraction_done() for trial in active)
        if self._first is None:
            self._first, self._begun = done, time.monotonic()
        went = done - self._first
        if went <= 0.02 or done >= self.total:
            return ""
        return f", about {format_duration((self.total - done) * (time.monotonic() - self._begun) / went)} left"

    def _table(self, active: list[RunningTrial]) -> Group:
        title = f"[bold]{escape(self.plan.name)}[/]: {escape(self.summary() + self._left(active))}"
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("trial", *self.plan.order(), *self.plan.objectives, "state"):
            table.add_column(escape(name), justify="left" if name == "state" else "right", no_wrap=True)
        ended = sorted((row for row in self._rows if row.state in ("done", "failed")), key=self._goodness)
        room = max(self.console.height - len(active) - 5, 3)
        for row in ended[:room]:
            values = [format_metric(n, v) for n, v in zip(self.plan.objectives, row.values, strict=False)]
            values += [""] * (len(self.plan.objectives) - len(values))
            state = f"failed: {row.why}" if row.state == "failed" else "done"
            self._add(table, row.number, row.point, values, f"[{COLORS[row.state]}]{escape(state)}[/]")
        for trial in active:
            progress = [read_progress(job.directory) for job in trial.jobs.values()]
            now = {"accuracy": [t.get("accuracy") for t in progress], "log_loss": [t.get("log_loss") for t in progress]}
            values = []
            for name in self.plan.objectives:
                known = [value for value in now.get(name, []) if value is not None]
                values.append(f"[dim]{format_metric(name, math.fsum(known) / len(known))}[/]" if known else "")
            self._add(table, trial.number, trial.point, values, f"[cyan]{trial.fraction_done():.0%}[/]")
        others = sum(row.state == "running" for row in self._rows) - len(active)
        hidden = max(len(ended) - room, 0)
        notes = [f"{hidden} worse ones not shown"] * (hidden > 0) + [f"{others} run by other workers"] * (others > 0)
        return Group(title, table, *notes)

    def _goodness(self, row: Row) -> tuple[bool, float]:
        """The best first, what failed last."""
        if row.state != "done":
            return True, row.number
        return False, -row.values[0] if OBJECTIVES[self.plan.objectives[0]] else row.values[0]

    def _add(self, table: Table, number: int, point: Point, values: list[str], state: str) -> None:
        settings = [escape(say_value(point[name])) if name in point else "–" for name in self.plan.order()]
        table.add_row(str(number), *settings, *values, state)


def say_point(point: Point) -> str:
    """The settings of a trial in a line.

    >>> say_point({"learning_rate": 0.05, "num_streams": 4})
    'learning_rate = 0.05, num_streams = 4'
    """
    return ", ".join(f"{name} = {say_value(value)}" for name, value in point.items())
