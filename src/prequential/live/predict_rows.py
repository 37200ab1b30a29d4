"""Predictions of rows that come from a file or a pipe, written as CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.labels import label_text
from prequential.learners import by_id
from prequential.learners.transformer.learner import Learner
from prequential.live.row_encoding import check_columns, inputs_of, open_with_schema
from prequential.live.row_input import Row, RowInput

Write = Callable[[str], Any]  # what takes the text of some rows


class PredictionWriter:
    """Writes predictions row by row: the row's number, columns of the input, the label and all probabilities.

    As CSV there is a column for each label, `p(LABEL)`, and one for all labels not seen so far, `p(other)`. As JSON lines
    each row is an object with `row`, the columns, `predicted`, `probabilities` by label, and `other`.

    Parameters
    ----------
    write
        Called with the text of some rows.
    labels
        Those that the learner knows; predicting does not change them.
    json_lines
        Whether to write JSON lines.
    keep
        Columns of the input that are written, too.

    Examples
    --------
    >>> writer = PredictionWriter(lambda text: print(text, end=""), ["no", "yes"], json_lines=False, keep=["shop"])
    >>> writer.write_rows([Row(1, {"shop": "a", "price": "3.5"})], np.array([[-np.inf, 0.0, -np.inf]]))
    row,shop,predicted,p(no),p(yes),p(other)
    1,a,yes,0.0,1.0,0.0
    """

    def __init__(
        self, write: Write, labels: Sequence[Hashable], *, json_lines: bool = False, keep: Sequence[str] = ()
    ) -> None:
        self._write, self.labels, self.json_lines, self.keep = write, list(labels), json_lines, list(keep)
        self._names = [label if isinstance(label, str) else label_text(label) for label in self.labels]
        self._begun = False

    def begin(self) -> None:
        """Writes the line of column names, once."""
        if not self._begun and not self.json_lines:
            columns = [f"p({name})" for name in self._names]
            self._write(_line(["row", *self.keep, "predicted", *columns, "p(other)"]))
        self._begun = True

    def write_rows(self, rows: Sequence[Row], log_p: np.ndarray) -> None:
        """Writes the predictions of some rows, given log-probabilities (n, capacity)."""
        self.begin()
        known = len(self.labels)
        p = np.exp(log_p.astype(np.float64))
        lines = []
        for row, values in zip(rows, p, strict=True):
            best = int(values[:known].argmax()) if known else None
            other = float(values[known:].sum())
            kept = [row.fields.get(name) for name in self.keep]
            if self.json_lines:
                found = {
                    "row": row.number,
                    **dict(zip(self.keep, kept, strict=True)),
                    "predicted": None if best is None else _plain(self.labels[best]),
                    "probabilities": dict(zip(self._names, values[:known].tolist(), strict=True)),
                    "other": other,
                }
                lines.append(json.dumps(found) + "\n")
            else:
                predicted = "" if best is None else self._names[best]
                lines.append(_line([row.number, *kept, predicted, *values[:known].tolist(), other]))
        self._write("".join(lines))


def predict_all(
    path: Path,
    rows: RowInput,
    write: Write,
    *,
    json_lines: bool = False,
    keep: Sequence[str] = (),
    id: str | None = None,
    label: str | None = None,
    device: str = "auto",
    trust: bool = False,
) -> None:
    """Predicts rows with the learner that is kept somewhere, and writes each as soon as it is there.

    Parameters
    ----------
    path
        A run, a home or a file, as for `prequential.open`.
    rows
        The rows.
    write
        Called with the text of some rows.
    json_lines, keep
        As for `PredictionWriter`.
    id
        The column of the ids by which a home remembers what it was asked.
    label
        A column that is no feature, where the learner knows no names.
    device, trust
        As for `prequential.open`.
    """
    learner = open_with_schema(path, device=device, trust=trust)
    if id is not None and getattr(learner, "home", None) is None:
        raise BadInput(f"{path} is no home, and what it is asked by id would be forgotten; prequential learn makes one")
    writer = PredictionWriter(write, learner.labels.known, json_lines=json_lines, keep=keep)
    without = [column for column in (id, label) if column is not None]
    for batch in rows:
        check_columns(rows, batch, [*keep, *([] if id is None else [id])])
        inputs = inputs_of(learner, batch, without)
        if id is None:
            log_p = learner.predict_log_proba_many(inputs)
        else:
            # the prediction that is remembered may be from before there were as many classes
            asked = [by_id.ask(learner, x, row.fields[id])[0] for x, row in zip(inputs, batch, strict=True)]
            log_p = np.full((len(asked), max(map(len, asked))), -np.inf)
            for place, found in zip(log_p, asked, strict=True):
                place[: len(found)] = found
        writer.write_rows(batch, log_p)
    writer.begin()
    if isinstance(learner, Learner):
        learner.close()


def _line(fields: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow("" if field is None else field for field in fields)
    return text.getvalue()


def _plain(label: Hashable) -> Any:
    """A label as JSON; one that JSON has no value for as its text."""
    return label if label is None or isinstance(label, (str, int, float, bool)) else label_text(label)
