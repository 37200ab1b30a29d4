"""The runs in a folder as a table for a terminal: sorted, filtered, and folded by a setting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from prequential.errors import BadInput, BadSetting, PrequentialError
from prequential.plots.style import cut, short_stream_name
from prequential.reports.data import group_names, learner_name, setting_text
from prequential.reports.run_reader import RunReader, runs_inside
from prequential.runs.formatting import format_metric
from prequential.runs.job import read_progress, read_result
from prequential.specs import nearest

# What a list is sorted by: a name for the command line, and whether the largest comes first.
SORTS = {
    "accuracy": True,
    "kappa": True,
    "kappa_temporal": True,
    "balanced_accuracy": True,
    "log_loss": False,
    "count": True,
    "seconds": False,
    "begun": True,
    "name": False,
}
# The columns: heading, number, and whether it is left out on a terminal narrower than 110 characters.
COLUMNS = (
    ("examples", "count", True),
    ("accuracy", "accuracy", False),
    ("majority", "majority_accuracy", False),
    ("last label", "last_label_accuracy", False),
    ("kappa", "kappa", True),
    ("log-loss", "log_loss", True),
    ("time", "seconds", True),
)
LONGEST_NAME = 60


@dataclass(frozen=True)
class Line:
    """A row of the list: one run, or several that are folded."""

    name: str
    stream: str
    directories: list[Path]
    results: list[dict[str, Any]]  # of each of them
    begun: float  # the latest of them, in seconds since 1970

    def mean(self, number: str) -> float | None:
        """The mean of a number over the runs that have it."""
        known = [result[number] for result in self.results if result.get(number) is not None]
        return sum(known) / len(known) if known else None

    def text(self, number: str, range_too: bool = True) -> str:
        """The mean of a number, with its range where there are several runs and there is room."""
        mean = self.mean(number)
        if mean is None:
            return "–"
        if number == "count":
            return f"{mean:,.0f}"
        values = [result[number] for result in self.results if result.get(number) is not None]
        wide = range_too and number == "accuracy" and len(values) > 1
        low, high = (format_metric(number, value).removesuffix(" %") for value in (min(values), max(values)))
        return format_metric(number, mean) + (f" ({low}–{high})" if wide else "")

    def state(self) -> str:
        """How far its runs have come."""
        states = [result["state"] for result in self.results]
        many = f"{len(states)} runs" if len(states) > 1 else ""
        others = [f"{states.count(s)} {s}" if many else s for s in dict.fromkeys(states) if s != "finished"]
        return ", ".join([*([many] if many else []), *others])


def list_runs(
    folder: Path, *, sort: str = "begun", match: Sequence[str] = (), by: str | None = None
) -> tuple[list[Line], list[str]]:
    """The runs below a folder as rows, and sentences on those that cannot be read.

    Nothing but small files is read, so that a thousand runs are listed in a moment.

    Parameters
    ----------
    folder
        Where to look, however deep.
    sort
        A number, or "name" or "begun".
    match
        Words that must all be part of a run's name, path, stream, or of `setting=value`.
    by
        What runs are folded by: "seed" folds those that differ in nothing else, a setting folds all that share its value
        (and the learner and the stream). None: every run has a row.
    """
    if sort not in SORTS:
        raise BadSetting(f"runs cannot be sorted by {sort!r}{nearest(sort, SORTS)}; expected one of {', '.join(SORTS)}")
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder of runs: it does not exist")
    readers, problems = [], []
    for directory in runs_inside(folder):
        try:
            readers.append(RunReader(directory))
        except PrequentialError as error:
            problems.append(str(error))
    readers = [reader for reader in readers if _matches(reader, match)]
    names = _names(readers, folder, by)
    folded: dict[tuple[str, str], list[RunReader]] = {}
    for reader, name in zip(readers, names, strict=True):
        folded.setdefault((name, reader.run_settings.stream), []).append(reader)
    lines = [
        Line(
            name,
            short_stream_name(stream),
            [reader.directory for reader in some],
            [_result(reader.directory) for reader in some],
            max(_begun(reader.directory) for reader in some),
        )
        for (name, stream), some in folded.items()
    ]
    return _sorted(lines, sort), problems


def _names(readers: list[RunReader], folder: Path, by: str | None) -> list[str]:
    """The name of the row of each run."""
    if by is None:
        return [f"{reader.directory.relative_to(folder)}  {learner_name(reader)}" for reader in readers]
    if by == "seed":
        return group_names(readers)
    setting = by.replace("-", "_")
    known = readers[0].all_settings if readers else {}
    if readers and setting not in known:
        raise BadSetting(f"runs cannot be folded by {by!r}{nearest(setting, [*known, 'seed'])}: it is no setting")
    return [f"{learner_name(reader)}, {by} {setting_text(reader.all_settings[setting])}" for reader in readers]


def _matches(reader: RunReader, words: Sequence[str]) -> bool:
    settings = [f"{name}={value}".replace("_", "-") for name, value in reader.all_settings.items() if value is not None]
    text = "\n".join([str(reader.directory), learner_name(reader), *settings]).lower()
    return all(word.lower().replace("_", "-") in text.replace("_", "-") for word in words)


def _result(directory: Path) -> dict[str, Any]:
    """The numbers of a run; of one that is not finished, what its progress tells."""
    result = read_result(directory)
    return result if result["state"] == "finished" else {**read_progress(directory), **result}


def _begun(directory: Path) -> float:
    path = directory / "environment.json"
    return path.stat().st_mtime if path.is_file() else (directory / "settings.toml").stat().st_mtime


def _sorted(lines: list[Line], sort: str) -> list[Line]:
    """The best or the latest first; what is not known comes last."""
    if sort == "name":
        return sorted(lines, key=lambda line: line.name)
    value = {id(line): line.begun if sort == "begun" else line.mean(sort) for line in lines}
    known = [line for line in lines if value[id(line)] is not None]
    unknown = [line for line in lines if value[id(line)] is None]
    return [*sorted(known, key=lambda line: value[id(line)] or 0.0, reverse=SORTS[sort]), *unknown]


def run_table(lines: Sequence[Line], width: int = 120) -> Table:
    """The list for a terminal of this width; red is no better than the majority class or the last label."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=26)
    table.add_column("stream", overflow="fold", max_width=30 if width >= 110 else 14)
    columns = [(heading, number) for heading, number, narrow in COLUMNS if width >= 110 or not narrow]
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    if width >= 110:
        table.add_column("begun", no_wrap=True)
    for line in lines:
        texts = [line.text(number, width >= 110).replace(" %", "%") for _, number in columns]
        accuracy, last = line.mean("accuracy"), line.mean("last_label_accuracy")
        if accuracy is not None and last is not None and accuracy <= max(last, line.mean("majority_accuracy") or 0.0):
            at = [number for _, number in columns].index("accuracy")
            texts[at] = f"[red]{texts[at]}[/]"
        day = [time.strftime("%Y-%m-%d %H:%M", time.localtime(line.begun))] if width >= 110 else []
        state = f" [yellow]{line.state()}[/]" if line.state() else ""
        table.add_row(escape(cut(line.name, LONGEST_NAME)) + state, escape(cut(line.stream, 30)), *texts, *day)
    return table
