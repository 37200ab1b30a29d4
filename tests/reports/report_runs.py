"""Directories of runs as a report finds them, without the time a learner would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from prequential.evaluation.records import RecordWriter
from prequential.learners.charges import Charges
from prequential.runs.run_settings import RunSettings, write_settings
from prequential.settings import Settings

CLASSES = 10


def charges(n: int, seed: int = 0, *, first: int = 0, task_length: int = 100) -> Charges:
    """What n examples cost a learner that gets better inside each task."""
    random = np.random.default_rng((seed, first))
    inside = np.arange(first, first + n) % task_length
    p = 0.1 + 0.8 * (1 - np.exp(-inside / (0.15 * task_length)))
    right = random.random(n) < p
    predicted = random.integers(0, 5, n)
    return Charges(-np.log(np.where(right, p, (1 - p) / 9)), predicted, right, p)


def add(writer: RecordWriter, n: int, seed: int = 0, task_length: int | None = 100) -> None:
    """Adds n examples to the records of a run."""
    first = writer.position
    made = charges(n, seed, first=first, task_length=task_length or 100)
    tasks = None if task_length is None else np.arange(first, first + n) // task_length
    names = ["<script>", "&amp;", *map(str, range(2, CLASSES))]
    labels = [names[k if right else (k + 1) % 5] for k, right in zip(made.predicted, made.correct, strict=True)]
    writer.append(first, labels, made, names, tasks)


def make_run(
    directory: Path,
    n: int = 3000,
    *,
    seed: int = 0,
    task_length: int | None = 100,
    scores: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
    **run: Any,
) -> Path:
    """A finished run of n examples; `run` and `learner` are its settings."""
    directory.mkdir(parents=True)
    writer = RecordWriter(directory / "records")
    add(writer, n, seed, task_length)
    writer.close()
    text = write_settings(RunSettings(**run), Settings(seed=seed, **(learner or {})))
    (directory / "settings.toml").write_text(text)
    environment = {
        "command": ["prequential", "run", "--label", run.get("label", "y")],
        "versions": {"prequential": "0.1.0"},
        "stream": {"fingerprint": "0123abcd", "examples": n},
        "device": "cpu",
    }
    (directory / "environment.json").write_text(json.dumps(environment))
    told = {"finished": True, "classes": CLASSES, "macs_per_example": 1e6, "seconds": 12.5, **(scores or {})}
    (directory / "scores.json").write_text(json.dumps(told))
    return directory
