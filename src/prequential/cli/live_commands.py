"""Commands for learners at work: predict and learn. Heavy imports wait until they are needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from prequential.settings import Settings

NEW = Group("A new home", sort_key=2)
LEARNER = Group("The learner of a new home", sort_key=3)
MANY = Parameter(consume_multiple=True, negative=())


def predict(
    learner: Path,
    rows: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    format: Literal["csv", "jsonl"] = "csv",
    keep: Annotated[list[str] | None, MANY] = None,
    id: str | None = None,
    label: str | None = None,
    delimiter: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    trust: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Predict rows with the learner of a run, a home or a file: the most probable label and all probabilities.

    Rows are read as they come and written at once, so that it works in a pipe; memory stays small. Nothing is learned.

    Parameters
    ----------
    learner
        The directory of a run, a home, or a file that a learner was saved to.
    rows
        A CSV with a line of column names, JSON lines, or - for standard input.
    format
        What is written: csv (a column for each label) or jsonl (JSON lines).
    keep
        Columns of the input that are written, too.
    id
        A column with an id: a home remembers what it was asked by it, and `learn --id` gives the labels later.
    label
        A column that is no feature, where the learner knows no names of columns.
    delimiter
        What separates the fields of a CSV; by default what is most frequent in its first line.
    out
        A file to write to; by default standard output.
    device
        Where to compute: auto, cpu, cuda, ...
    trust
        Do what is kept with the learner even if that is more than to read data and to learn, such as to import code.
    """
    from prequential.live.predict_rows import predict_all
    from prequential.live.row_input import open_rows

    given: dict[str, Any] = {"json_lines": format == "jsonl", "keep": keep or (), "id": id, "label": label}
    given |= {"device": device, "trust": trust}
    with open_rows(rows, delimiter=delimiter) as source:
        if out is None:
            predict_all(learner, source, _print, **given)
            return
        with out.open("w", encoding="utf-8", newline="") as file:
            predict_all(learner, source, file.write, **given)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()  # whoever reads the pipe waits for it


def learn(
    home: Path,
    rows: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    label: str | None = None,
    id: str | None = None,
    source: str | None = None,
    delimiter: str | None = None,
    from_: Annotated[Path | None, Parameter(name="--from", group=NEW)] = None,
    classes: Annotated[int | None, Parameter(group=NEW)] = None,
    device: str = "auto",
    trust: Annotated[bool, Parameter(negative=())] = False,
    settings: Annotated[Settings, Parameter(name="*", group=LEARNER)] = Settings(),  # noqa: B008 (frozen)
) -> None:
    """Go on learning in a home from labeled rows: each is predicted, charged, and only then learned.

    Where HOME does not exist, it is made: from a run or a saved learner with --from, else new, and then the first rows
    decide how columns are read. Ctrl-C ends it; everything learned is kept. The same command goes on behind the last row
    that was learned from a file. Rows from standard input are all learned, unless --source names them.

    Parameters
    ----------
    home
        The home of the learner.
    rows
        A CSV with a line of column names, JSON lines, or - for standard input.
    label
        The column with the label; by default as before, else the one called label, y, target or class, else the last.
    id
        A column with the ids of predictions that were made before with `predict --id`: rows are labels of those.
    source
        A name for the rows, under which the home keeps how far they were learned; by default the path of the file.
    delimiter
        What separates the fields of a CSV; by default what is most frequent in its first line.
    from_
        A new home for the learner of this run or this file.
    classes
        How many labels there can be; by default any number.
    device
        Where to compute: auto, cpu, cuda, ...
    trust
        Do what is kept with the learner even if that is more than to read data and to learn, such as to import code.
    """
    from rich.console import Console

    from prequential.live.learn_home import learn_all
    from prequential.live.row_input import open_rows

    with open_rows(rows, delimiter=delimiter) as found:
        if source is None and rows != "-":
            source = str(Path(rows).resolve())
        learn_all(
            home, found, Console(highlight=False, stderr=False), label=label, id=id, source=source, start=from_,
            classes=classes, settings=settings, device=device, trust=trust,
        )  # fmt: skip
