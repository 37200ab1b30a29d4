"""The command `learn`: opens or makes a home, learns rows in it, and says how it went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from rich.console import Console

from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.learners.home import holds_learner
from prequential.learners.transformer.learner import Learner
from prequential.live.learn_rows import LabelReader, Stop, learn_rows, new_rows, rows_taken
from prequential.live.row_encoding import check_columns, open_with_schema
from prequential.live.row_input import Row, RowInput
from prequential.runs.open_learner import stream_of_run
from prequential.settings import Settings
from prequential.streams.formats.schema import Schema
from prequential.streams.formats.table import default_label

FIRST_ROWS = 1000  # that decide how the columns of a new home are read
PAUSE = 1.0  # seconds without a row after which those that are there decide
LINE_SECONDS = 10.0  # how often a line says how it goes


def learn_all(
    home: Path,
    rows: RowInput,
    console: Console,
    *,
    label: str | None = None,
    id: str | None = None,
    source: str | None = None,
    start: Path | None = None,
    classes: int | None = None,
    settings: Settings | None = None,
    device: str = "auto",
    trust: bool = False,
) -> Scores:
    """Learns rows in a home, which is made where there is none; the scores of these rows.

    Parameters
    ----------
    home
        The directory.
    rows
        The rows.
    console
        Where to say how it goes.
    label
        The column of the labels.
    id
        The column of ids: rows are labels of what was asked by them.
    source
        The name of the rows, under which the journal keeps which of them were learned.
    start
        The run or file whose learner moves in, where there is no home yet.
    classes, settings
        Of a new learner.
    device, trust
        As for `prequential.open`.
    """
    batches = iter(rows)
    if holds_learner(home):
        if start is not None:
            raise BadInput(f"{home} is there already and goes on as it is; leave --from {start} out")
        learner = _opened(home, device, trust)
    else:
        batches, first = _peek(batches, FIRST_ROWS, rows)
        if not first:
            raise BadInput(f"{rows.name} has no rows to begin a home with")
        label = label or (None if start is None else _label_of(start, trust))
        label = label or default_label(list(first[0].fields), {id})
        check_columns(rows, first, [label])
        LabelReader(label, []).read(first, rows.name)
        if start is None:
            learner = _new(home, first, label, classes, settings or Settings(), device)
        else:
            learner = _opened(start, device, trust)
            learner.settle(home)
    try:
        return _learn(learner, rows, batches, console, label, id, source)
    finally:
        learner.close()


def _opened(path: Path, device: str, trust: bool) -> Learner:
    learner = open_with_schema(path, device=device, trust=trust)
    if not isinstance(learner, Learner):
        raise BadInput(f"the learner of {path} is a {type(learner).__name__}; only a transformer can have a home")
    return learner


def _label_of(run: Path, trust: bool) -> str | None:
    """The label column of a run over a table."""
    if not run.is_dir() or holds_learner(run):
        return None
    found = getattr(stream_of_run(run, trust=trust), "_label", None)
    return None if found is None else str(found.name)


def _new(home: Path, first: list[Row], label: str, classes: int | None, settings: Settings, device: str) -> Learner:
    fields = [{name: value for name, value in row.fields.items() if name != label} for row in first]
    schema = Schema.from_rows(fields, ignored=[label])
    return Learner(classes, settings=settings, home=home, device=device, missing=True, schema=schema)


def _peek(
    batches: Iterator[list[Row]], count: int, rows: RowInput | None = None
) -> tuple[Iterator[list[Row]], list[Row]]:
    """The batches again, and so many of their first rows; fewer where the rows pause."""
    taken: list[list[Row]] = []
    while sum(map(len, taken)) < count and (batch := next(batches, None)) is not None:
        taken.append(batch)
        if rows is not None and not rows.has_more(PAUSE):
            break
    return chain(taken, batches), [row for batch in taken for row in batch][:count]


def _learn(
    learner: Learner,
    rows: RowInput,
    batches: Iterator[list[Row]],
    console: Console,
    label: str | None,
    id: str | None,
    source: str | None,
) -> Scores:
    before, begun = learner.position, time.monotonic()
    scores = Scores(learner.labels.capacity)
    if id is None and source is not None:
        taken = rows_taken(learner.journal, source)
        batches = new_rows(batches, rows.name, taken)
        if taken.number:
            console.print(f"{taken.number:,} rows of {rows.name} were learned before", markup=False)
    batches, first = _peek(batches, 1)
    if not first:
        console.print(f"{rows.name} has no new rows", markup=False)
        return scores
    label = _remembered(learner, label) or default_label(list(first[0].fields), {id})
    check_columns(rows, first, [label, *([] if id is None else [id])])
    learner.remember(label_column=label)
    said = begun

    def after(scores: Scores) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            rate = scores.count / (said - begun)
            console.print(f"{scores.count:,} rows  {rate:,.0f} rows/s  {_scores(scores)}")

    labels = LabelReader(label, learner.labels.known)
    try:
        with Stop() as stop:
            learn_rows(
                learner,
                batches,
                labels=labels,
                scores=scores,
                stop=stop,
                name=rows.name,
                source=source,
                id=id,
                after=after,
            )
    finally:
        learned = learner.position - before
        console.print(f"{learned:,} rows learned" + (f", {_scores(scores)}" if scores.count else ""), markup=False)
    if stop.requested:
        console.print("stopped; the same command goes on behind the last row that was learned")
    console.print(repr(learner), markup=False, soft_wrap=True)
    return scores


def _remembered(learner: Learner, label: str | None) -> str | None:
    found = label or learner.remembered("label_column")
    return None if found is None else str(found)


def _scores(scores: Scores) -> str:
    return f"accuracy {scores.accuracy:.1%}, log-loss {scores.log_loss:.3f} nats"
