"""Rows with named fields as a learner takes them: by the same columns as the table that it learned from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, short
from prequential.learners.base import OnlineLearner
from prequential.live.row_input import Row, RowInput
from prequential.runs.open_learner import open_learner, stream_of_run


def open_with_schema(path: Path, *, device: str = "auto", trust: bool = False) -> OnlineLearner:
    """The learner of a run, a home or a file; one whose run was over a table knows how its columns are read."""
    learner = open_learner(path, device=device, trust=trust)
    if learner.schema is None and (path / "checkpoints").is_dir():
        with suppress(BadInput):  # a run of an earlier version kept none; where its stream is gone, columns are numbers
            learner.schema = stream_of_run(path, trust=trust).schema
    return learner


def inputs_of(learner: OnlineLearner, rows: Sequence[Row], without: Sequence[str] = ()) -> np.ndarray:
    """Rows as x (n, features): by the learner's columns, or as numbers in their order where it knows no names."""
    fields = [{name: value for name, value in row.fields.items() if name not in without} for row in rows]
    if learner.schema is not None:
        x: np.ndarray = learner.schema.encode(fields, first=rows[0].number)
        return x
    return np.array([_numbers(learner, row.number, named) for row, named in zip(rows, fields, strict=True)])


def _numbers(learner: OnlineLearner, number: int, fields: dict[str, Any]) -> list[float]:
    values = []
    for name, value in fields.items():
        try:
            values.append(float("nan") if value is None else float(value))
        except (TypeError, ValueError):
            raise BadInput(
                f"row {number}: column {short(name)} is {short(value)}, expected a number: this learner was made from "
                "arrays and knows no columns; --label names one that is no feature"
            ) from None
    if learner.shape is not None and (len(values),) != learner.shape:
        raise BadInput(
            f"row {number} has {len(values)} columns of numbers, expected x of shape {learner.shape}; --label names a "
            "column that is no feature"
        )
    return values


def check_columns(rows: RowInput, batch: Sequence[Row], needed: Sequence[str]) -> None:
    """Refuses rows that lack a column."""
    for row in batch if rows.is_json else batch[:1]:
        for name in needed:
            if name not in row.fields:
                raise BadInput(
                    f"{rows.name}, row {row.number} has no column {short(name)}; it has {short(list(row.fields))}"
                )
