"""What came out of a run, from what it has recorded so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from prequential.errors import BadInput
from prequential.plots.curves import draw_calibration, draw_run, draw_tasks
from prequential.runs.progress import describe
from prequential.runs.run import Run
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
        console.print(line)
    summary = _summary(directory / "scores.json")
    metrics = summary.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        console.print(f"{name} {value}"[:300], markup=False, soft_wrap=True)
    hints = summary.get("hints")
    for hint in hints[:100] if isinstance(hints, list) else ():
        console.print(str(hint)[:300], markup=False, soft_wrap=True)
    pictures = {"curves.png": draw_run, "calibration.png": draw_calibration}
    for name, draw in pictures.items():
        draw({run.name: scores}, directory / name, title=run.title)
    if run.stream.task_starts() is not None:
        draw_tasks(scores, directory / "tasks.png", title=run.title)
        pictures["tasks.png"] = draw_tasks  # type: ignore[assignment]
    console.print(f"pictures in {directory}: {', '.join(pictures)}", soft_wrap=True)


def _summary(path: Path) -> dict[str, Any]:
    """What the run has written at its end, as far as it has come to one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
