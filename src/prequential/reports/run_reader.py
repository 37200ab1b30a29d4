"""Reads runs for a report, finished or in progress: one pass over their records, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.evaluation.binned_sums import BinnedSums
from prequential.evaluation.records import damage, part_bounds
from prequential.evaluation.scores import Scores
from prequential.learners.charges import Charges
from prequential.runs.run_settings import RunSettings, read_stored_settings
from prequential.settings import Settings
from prequential.storage.checkpoint import read_checkpoint, short
from prequential.storage.sealed import check_toml, read_json
from prequential.storage.toml import read_toml

FINE_ROWS = 8192  # points of the curve before neighbors are merged: enough to zoom in
EARLY = np.unique(np.round(1.05 ** np.arange(500)).astype(np.int64))  # where the curve is kept exactly, for a log axis
COLUMNS = ["log_loss", "correct", "confidence", "task"]


class Rows(NamedTuple):
    """Consecutive examples of a run."""

    log_loss: np.ndarray
    correct: np.ndarray
    confidence: np.ndarray
    task: np.ndarray  # -1: the stream knows no tasks


class Sums:
    """What a report needs of the examples so far: their scores, a fine curve, and its beginning point by point."""

    def __init__(self, *, tasks: bool) -> None:
        self.scores = Scores(1, np.array([0]) if tasks else None)
        self.fine = BinnedSums(FINE_ROWS)
        self.early: list[np.ndarray] = []  # (3, n): examples, right answers and nats up to positions of EARLY
        self._task: int | None = None  # of the latest example

    def add(self, rows: Rows) -> None:
        """Adds the examples that follow the latest one."""
        first, n = self.scores.count, len(rows.log_loss)
        if not n:
            return
        if self.scores.task_starts is not None:
            before = rows.task[0] if self._task is None else self._task
            starts = first + np.flatnonzero(np.diff(rows.task, prepend=before))
            self.scores.task_starts = np.concatenate([self.scores.task_starts, starts])
            self._task = int(rows.task[-1])
        right, nats = self._totals()
        self.scores.update(first, Charges(rows.log_loss, np.zeros(n, np.int64), rows.correct, rows.confidence))
        self.fine.add(np.arange(first, first + n), np.zeros(n, np.int64), rows.log_loss, rows.correct)
        low, high = np.searchsorted(EARLY, [first, first + n], side="right")
        at = EARLY[low:high]
        if len(at):
            rights = right + np.cumsum(rows.correct)[at - first - 1]
            costs = nats + np.cumsum(rows.log_loss)[at - first - 1]
            self.early.append(np.stack([at.astype(np.float64), rights.astype(np.float64), costs]))

    def _totals(self) -> tuple[int, float]:
        return int(self.fine.correct.sum()), self.scores.total_nats

    def copy(self) -> Sums:
        """An independent copy."""
        other = Sums(tasks=self.scores.task_starts is not None)
        other.scores.given_classes, other.scores.task_starts = self.scores.given_classes, self.scores.task_starts
        other.scores.load_state_dict(self.scores.state_dict())
        other.fine.load_state_dict(self.fine.state_dict())
        other.early, other._task = list(self.early), self._task
        return other

    def curve(self, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, and the right answers and nats up to each; about this many points or fewer, plus early ones."""
        join = max(1, -(-self.fine.used // points))
        columns = (self.fine.count[:, 0], self.fine.correct[:, 0], self.fine.nats[:, 0])
        ends = np.append(np.arange(join - 1, self.fine.used - 1, join), self.fine.used - 1)
        table = np.stack([np.cumsum(column)[ends] for column in columns])
        if self.early:
            early = np.concatenate(self.early, axis=1)
            table = np.concatenate([early[:, early[0] < 20 * join * self.fine.group], table], axis=1)
        _, kept = np.unique(table[0], return_index=True)
        return table[0, kept].astype(np.int64), table[1, kept].astype(np.int64), table[2, kept]


class RunReader:
    """Reads the files of a run; `refresh` reads what is new while the run is in progress.

    Records are read part by part, each full part once. What is not in a part yet is taken from the newest checkpoint.
    Every file of a run is replaced as a whole, so whatever is there can be read.

    Parameters
    ----------
    directory
        The directory of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not (directory / "settings.toml").is_file():
            raise BadInput(f"{directory} holds no run: there is no settings.toml in it")
        check_toml(directory / "settings.toml")
        on_run, on_learner = read_stored_settings(directory / "settings.toml")
        self.run_settings, self.settings = RunSettings(**on_run), Settings(**on_learner)
        self._given = {**on_run, **on_learner}
        self.sums: Sums | None = None  # of all examples that can be read; None: none can
        self._full: Sums | None = None  # of those in full parts
        self._read: list[tuple[Path, Any]] = []  # the full parts, and how they were recognized
        self._seen: Any = None  # how everything was recognized that was read last
        self._summary: dict[str, Any] = {}

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings by name, those of the run first, as its file has them; None where it does not say.

        What a newer version would take for them is left out: the run was not made with that.
        """
        names = [field.name for kind in (RunSettings, Settings) for field in fields(kind) if field.name != "out"]
        return {name: self._given.get(name) for name in names}

    @property
    def environment(self) -> dict[str, Any]:
        """The command, the versions and so on that the run was started with."""
        return _read_json(self.directory / "environment.json")

    @property
    def summary(self) -> dict[str, Any]:
        """The scores at its latest end, and its progress file."""
        return self._summary

    @property
    def classes(self) -> int | None:
        """How many labels there can be, if known yet."""
        return None if self.sums is None or self.sums.scores.classes == 1 else self.sums.scores.classes

    def refresh(self) -> bool:
        """Reads what is new; whether anything was."""
        parts = self._parts()
        checkpoints = sorted((self.directory / "checkpoints").glob("[0-9]*.safetensors"))[-1:]
        small = [_mark(self.directory / name) for name in ("scores.json", "progress.json", "environment.json")]
        seen = [[_mark(path) for path in (*parts, *checkpoints)], small]
        if seen == self._seen:
            return False
        self._summary = {
            **_read_json(self.directory / "progress.json"),
            **_read_json(self.directory / "scores.json"),
        }
        if any(_mark(path) != mark for path, mark in self._read):  # the run went back to an earlier checkpoint
            self._full, self._read = None, []
        tail = None
        for path in parts[len(self._read) :]:
            mark = _mark(path)
            rows = _read_part(path)
            if rows is None:
                break
            first, stop = part_bounds(int(path.stem[5:]))
            if first + len(rows.log_loss) < stop:
                tail = rows
                break
            self._full = self._full or Sums(tasks=bool(rows.task[0] >= 0))
            self._full.add(rows)
            self._read.append((path, mark))
        done = self._full.scores.count if self._full is not None else 0
        classes = self.run_settings.classes
        for path in checkpoints:
            saved = _read_checkpoint(path)
            classes = saved[0] if saved else classes
            if saved and saved[1] == done and (tail is None or len(saved[2].log_loss) > len(tail.log_loss)):
                tail = saved[2]
        self.sums = self._full
        if tail is not None and len(tail.log_loss):
            self.sums = self._full.copy() if self._full is not None else Sums(tasks=bool(tail.task[0] >= 0))
            self.sums.add(tail)
        classes = self._summary.get("classes") or classes
        if self.sums is not None and classes:
            self.sums.scores.given_classes = int(classes)
        self._seen = seen
        return True

    def _parts(self) -> list[Path]:
        """The parts from the first one on, as far as none is missing."""
        parts, first = [], 0
        while (path := self.directory / "records" / f"part-{first:012d}.parquet").is_file():
            parts.append(path)
            first = part_bounds(first)[1]
        return parts

    def check(self) -> None:
        """Refuses a run with nothing to report, or with a part missing in between."""
        if self.sums is None:
            raise BadInput(f"the run in {self.directory} has recorded no example yet")
        latest = max((self.directory / "records").glob("part-*.parquet"), default=None)
        if latest is not None and int(latest.stem[5:]) >= self.sums.scores.count:
            raise BadInput(
                f"{latest} starts at example {int(latest.stem[5:])}, expected one up to {self.sums.scores.count}: "
                f"a part before it is missing"
            )


def find_runs(paths: Iterable[Path], *, unfinished: bool = False) -> list[Path]:
    """The directories of the runs: each path is one, or is a comparison, of which the finished ones are taken.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons.
    unfinished
        Whether a comparison's other runs are taken too, as far as they have begun.
    """
    found: list[Path] = []
    for path in paths:
        if (path / "settings.toml").is_file():
            found.append(path)
            continue
        if not (path / "compare.toml").is_file():
            what = "does not exist" if not path.exists() else "has neither settings.toml nor compare.toml"
            raise BadInput(f"{path} is neither a run nor a comparison: it {what}")
        inside = [cell.parent for cell in path.glob("*/*/*/settings.toml")]
        kept = [cell for cell in inside if unfinished or _read_json(cell / "scores.json").get("finished")]
        if not kept:
            raise BadInput(f"the comparison in {path} has 0 finished runs of {len(inside)}, expected at least 1")
        found += _in_order(kept, _names(path / "compare.toml", "compare"))
    return list(dict.fromkeys(found))


def _in_order(cells: list[Path], compared: dict[str, Any]) -> list[Path]:
    """The runs in the order of the comparison; of paths only the last part is compared: they may be absolute by now."""

    def rank(names: list[str], name: str) -> int:
        return next((i for i, other in enumerate(names) if name == other), len(names))

    def key(cell: Path) -> tuple[int, int, str, int]:
        run = _names(cell / "settings.toml", "run")
        stream = rank([_end(str(name)) for name in _list(compared.get("streams"))], _end(str(run.get("stream", ""))))
        learner = rank(_list(compared.get("learners")), run.get("learner", "transformer"))
        return stream, learner, str(cell.parent), int(cell.name) if cell.name.isdecimal() else 0

    return sorted(cells, key=key)


def _names(path: Path, table: str) -> dict[str, Any]:
    """A table of a TOML file; nothing in it is looked up by its name."""
    found = read_toml(path).get(table)
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _end(stream: str) -> str:
    return stream.rpartition("/")[2]


def _mark(path: Path) -> Any:
    """What changes when a file is replaced; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def _read_part(path: Path) -> Rows | None:
    """The rows of a part; None when it was removed meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_file() and (why := damage(path)):
        raise BadInput(f"{path} {why}")
    first, stop = part_bounds(int(path.stem[5:]))
    try:
        with pq.ParquetFile(path) as file:
            if not 0 < file.metadata.num_rows <= stop - first:
                raise BadInput(f"{path} is damaged: it has {file.metadata.num_rows} rows, expected {stop - first}")
            for name in COLUMNS:
                if name not in file.schema_arrow.names:
                    raise BadInput(f"{path} has no column {name!r}, only {', '.join(file.schema_arrow.names)}")
            table = file.read(columns=COLUMNS)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {short(error)}") from None
    log_loss, correct, confidence = (table[name].to_numpy() for name in COLUMNS[:3])
    return Rows(log_loss, correct, confidence, table["task"].combine_chunks().fill_null(-1).to_numpy())


def _read_checkpoint(path: Path) -> tuple[int, int, Rows] | None:
    """How many classes there are, and the first position and the rows of the part that is not full yet.

    Only these are read, not the learner, which may be large. None when that is not possible.
    """
    try:
        state = read_checkpoint(path, ["records", "scores"])
        rows = Rows(*(np.asarray(state["records"]["rows"][name]) for name in COLUMNS))
        scores = state["scores"]
        classes = scores["num_labels"] if scores["classes"] is None else scores["classes"]
        return int(classes), part_bounds(int(state["records"]["position"]))[0], rows
    except (BadCheckpoint, OSError, KeyError, TypeError, ValueError):  # removed meanwhile, damaged, or older
        return None
