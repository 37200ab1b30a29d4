"""The progress bar of a run, and the summary at its end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from prequential.evaluation.scores import Scores
from prequential.runs.formatting import format_duration
from prequential.runs.run import Run

LINE_SECONDS = 10.0  # how often a line is printed where there is no terminal to draw on


class ShowProgress:
    """Draws rate, time left, running accuracy and log-loss; prints lines instead where the output is a file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: Any = None
        self._begun = self._printed = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> ShowProgress:
        if self.console.is_terminal:
            columns = (BarColumn(None), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self.console, expand=True, transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, run: Run) -> None:
        now = time.monotonic()
        if self._first is None:
            # the first piece is not timed: it pays for the warm-up
            self._first, self._begun = run.position, now
            if self._bar is not None:
                self._task = self._bar.add_task("", total=run.length)
            return
        rate = (run.position - self._first) / max(now - self._begun, 1e-9)
        left = (run.length - run.position) / max(rate, 1e-9)
        text = (
            f"{run.position:,}/{run.length:,}  {rate:,.0f} examples/s  {format_duration(left)} left  "
            f"accuracy {run.scores.accuracy:.1%}  log-loss {run.scores.log_loss:.3f}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=run.position, description=text)
        elif now - self._printed >= LINE_SECONDS:
            self.console.print(text, highlight=False)
            self._printed = now


def describe(scores: Scores) -> list[str]:
    """What happened, in a few lines."""
    summary = scores.to_dict()
    lines = [f"{scores.count:,} examples, average accuracy {scores.accuracy:.1%}, log-loss {scores.log_loss:.3f} nats"]
    if scores.has_classes:
        best = max(scores.majority_accuracy, scores.last_label_accuracy)
        verdict = "" if scores.accuracy > best else ": this run is no better"
        lines.append(
            f"to compare: majority class {scores.majority_accuracy:.1%}, last label "
            f"{scores.last_label_accuracy:.1%}{verdict}"
        )
        lines.append(
            f"kappa {scores.kappa:.3f}, against the majority {scores.kappa_m:.3f}, against the last label "
            f"{scores.kappa_temporal:.3f}"
        )
        lines.append(f"balanced accuracy {scores.balanced_accuracy:.1%}, macro F1 {scores.macro_f1:.3f}")
    if summary.get("first_tasks"):
        first, last = summary["first_tasks"], summary["last_tasks"]
        lines.append(f"first {_tasks(first)}, last {_tasks(last)}")
    lines.append(
        f"description length {scores.bits:,.0f} bits, {scores.compression:.1%} of the uniform code; "
        f"calibration error {scores.calibration_error:.3f}"
    )
    if scores.metrics:
        lines.append(repr(scores.metrics))
    return lines


def _tasks(some: dict[str, Any]) -> str:
    # a learner that gave a label probability 0 has an infinite loss, which the summary leaves out
    nats = "infinite" if some["log_loss"] is None else f"{some['log_loss']:.2f}"
    return f"{some['tasks']} tasks {some['accuracy']:.1%} ({nats} nats)"
