"""The scores of a stored run, from its records or, where these are damaged, from its newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.evaluation.scores import Scores
from prequential.runs.run_settings import read_stored_settings
from prequential.storage.checkpoint import CheckpointFolder, loading, read_checkpoint


def load_scores(
    directory: Path, classes: int | None, task_starts: np.ndarray | None = None
) -> tuple[Scores, str | None]:
    """The scores, and a sentence where they could not be taken from the records.

    Parameters
    ----------
    directory
        The directory of the run.
    classes
        How many labels there can be; None where any number can come.
    task_starts
        Where tasks begin; when not given, taken from the records, and unknown where these are damaged.
    """
    how = label_protocol(directory)
    try:
        return Scores.from_records(directory / "records", classes, task_starts, **how), None
    except BadInput as error:
        scores = _from_checkpoint(directory, classes, task_starts, how)
        if scores is None:
            raise
        return scores, f"{error}; what is shown is from the checkpoint at example {scores.count:,}"


def label_protocol(directory: Path) -> dict[str, Any]:
    """How late labels came in a stored run, as arguments of `Scores`."""
    try:
        run, _ = read_stored_settings(directory / "settings.toml")
    except BadInput:  # a folder of records alone
        return {}
    return {"delay": run.get("delay") or 0, "label_batches": run.get("label_batches") or 1}


def _from_checkpoint(
    directory: Path, classes: int | None, task_starts: np.ndarray | None, how: dict[str, Any]
) -> Scores | None:
    for path in reversed(CheckpointFolder(directory / "checkpoints").paths()):
        try:
            state = read_checkpoint(path, ["scores"])["scores"]
            with loading(path):
                scores = Scores(classes if state["classes"] is not None else None, task_starts, **how)
                scores.load_state_dict(state if task_starts is not None else {**state, "tasks": None, "by_task": None})
                return scores
        except (BadCheckpoint, KeyError):
            continue
    return None
