"""What came out of a run, from what it has recorded so far."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.plots.classes import draw_classes, draw_label_shares
from prequential.plots.curves import draw_calibration, draw_run, draw_tasks
from prequential.runs.progress import describe
from prequential.runs.run import Run
from prequential.runs.show_classes import class_tables
from prequential.runs.stored_scores import load_scores


def show_run(directory: Path, console: Console, *, trust: bool = False) -> None:
    """Prints what a run has found and draws its pictures again; `trust` is as for `Run`."""
    if not (directory / "settings.toml").is_file():
        raise BadInput(f"{directory} holds no run: there is no settings.toml in it")
    run = Run(directory, trust=trust)
    if not any(any((directory / name).glob("*.*")) for name in ("records", "checkpoints")):
        raise BadInput(f"the run in {directory} has recorded no example yet")
    scores, damage = load_scores(directory, run.learner.labels.classes, run.stream.task_starts())
    if damage:
        console.print(damage, style="yellow", markup=False, soft_wrap=True)
    console.print(f"{run.title} · {run.name} · {scores.count:,} of {run.length:,} examples recorded")
    for line in describe(scores):
        console.print(line, soft_wrap=True)
    for part in class_tables(scores):
        console.print(part, soft_wrap=isinstance(part, str))
    summary = _summary(directory / "scores.json")
    metrics = summary.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        console.print(f"{name} {value}"[:300], markup=False, soft_wrap=True)
    hints = summary.get("hints")
    for hint in hints[:100] if isinstance(hints, list) else ():
        console.print(str(hint)[:300], markup=False, soft_wrap=True)
    drawn = draw_pictures(directory, scores, run.name, run.title)
    console.print(f"pictures in {directory}: {', '.join(drawn)}", soft_wrap=True)


def draw_pictures(directory: Path, scores: Scores, name: str, title: str) -> list[str]:
    """Draws everything there is to see of a run; the names of the files."""
    pictures: dict[str, Callable[[Path], object]] = {
        "curves.png": lambda path: draw_run({name: scores}, path, title=title),
        "calibration.png": lambda path: draw_calibration({name: scores}, path, title=title),
    }
    if scores.has_classes:
        pictures["classes.png"] = lambda path: draw_classes(scores, path, title=title)
        pictures["labels.png"] = lambda path: draw_label_shares(scores, path, title=title)
    if scores.task_count:
        pictures["tasks.png"] = lambda path: draw_tasks(scores, path, title=title)
    for file, draw in pictures.items():
        draw(directory / file)
    return list(pictures)


def _summary(path: Path) -> dict[str, Any]:
    """What the run has written at its end, as far as it has come to one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
