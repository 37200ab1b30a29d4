"""Reads runs for a report, finished or in progress: one pass over their records, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.evaluation.binned_sums import BinnedSums
from prequential.evaluation.records import damage, part_bounds
from prequential.evaluation.scores import RECORDED, Scores
from prequential.runs.run_settings import RunSettings, read_stored_settings
from prequential.settings import Settings
from prequential.storage.checkpoint import read_checkpoint, short
from prequential.storage.sealed import check_toml, read_json
from prequential.storage.toml import read_toml

if TYPE_CHECKING:
    import pyarrow as pa

FINE_ROWS = 8192  # points of the curve before neighbors are merged: enough to zoom in
EARLY = np.unique(np.round(1.05 ** np.arange(500)).astype(np.int64))  # where the curve is kept exactly, for a log axis
COLUMNS = [*RECORDED, "task"]


class Sums:
    """What a report needs of the examples so far: their scores, a fine curve, and its beginning point by point.

    Parameters
    ----------
    tasks
        Whether the stream has tasks.
    protocol
        How late labels come, as `delay` and `label_batches`.
    """

    def __init__(self, *, tasks: bool, protocol: dict[str, Any] | None = None) -> None:
        self.protocol = protocol or {}
        self.scores = Scores(1, np.array([0]) if tasks else None, **self.protocol)
        self.fine = BinnedSums(FINE_ROWS)
        self.early: list[np.ndarray] = []  # (3, n): examples, right answers and nats up to positions of EARLY
        self._task: int | None = None  # of the latest example

    def add(self, rows: pa.Table) -> None:
        """Adds the examples that follow the latest one; the table has the columns `COLUMNS`."""
        first, n = self.scores.count, len(rows)
        if not n:
            return
        if self.scores.task_starts is not None:
            task = _tasks(rows)
            before = task[0] if self._task is None else self._task
            starts = first + np.flatnonzero(np.diff(task, prepend=before))
            self.scores.task_starts = np.concatenate([self.scores.task_starts, starts])
            self._task = int(task[-1])
        right, nats = self._totals()
        self.scores.update_from_records(rows)
        log_loss, correct = rows["log_loss"].to_numpy(), rows["correct"].to_numpy()
        self.fine.add(np.arange(first, first + n), np.zeros(n, np.int64), log_loss, correct)
        low, high = np.searchsorted(EARLY, [first, first + n], side="right")
        at = EARLY[low:high]
        if len(at):
            rights = right + np.cumsum(correct)[at - first - 1]
            costs = nats + np.cumsum(log_loss)[at - first - 1]
            self.early.append(np.stack([at.astype(np.float64), rights.astype(np.float64), costs]))

    def _totals(self) -> tuple[int, float]:
        return int(self.fine.correct.sum()), self.scores.total_nats

    def copy(self) -> Sums:
        """An independent copy."""
        other = Sums(tasks=self.scores.task_starts is not None, protocol=self.protocol)
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
        self._protocol = {"delay": on_run.get("delay") or 0, "label_batches": on_run.get("label_batches") or 1}

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
        saved = _read_checkpoint(checkpoints[0]) if checkpoints else None
        self._summary = {
            **({} if saved is None else {"seconds": saved.seconds}),
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
            if first + len(rows) < stop:
                tail = rows
                break
            self._full = self._full or self._new_sums(rows)
            self._full.add(rows)
            self._read.append((path, mark))
        done = self._full.scores.count if self._full is not None else 0
        classes = saved.classes if saved else self.run_settings.classes
        if saved and saved.first == done and (tail is None or len(saved.rows) > len(tail)):
            tail = saved.rows
        self.sums = self._full
        if tail is not None and len(tail):
            self.sums = self._full.copy() if self._full is not None else self._new_sums(tail)
            self.sums.add(tail)
        classes = self._summary.get("classes") or classes
        if self.sums is not None and classes:
            self.sums.scores.given_classes = int(classes)
        self._seen = seen
        return True

    def _new_sums(self, rows: pa.Table) -> Sums:
        return Sums(tasks=bool(_tasks(rows)[0] >= 0), protocol=self._protocol)

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
    """The directories of the runs: each path is one, or a folder with runs in it, however deep.

    Of a comparison the finished runs are taken; of any other folder all that have recorded something.

    Parameters
    ----------
    paths
        Directories of runs, comparisons, sweeps and experiments, and folders of these.
    unfinished
        Whether a comparison's other runs are taken too, as far as they have begun.
    """
    found: list[Path] = []
    for path in paths:
        if (path / "settings.toml").is_file():
            found.append(path)
            continue
        if not path.is_dir():
            raise BadInput(f"{path} is neither a run nor a folder of runs: it does not exist")
        inside = runs_inside(path)
        if (path / "compare.toml").is_file():
            kept = [run for run in inside if unfinished or _is_finished(run)]
            if not kept:
                raise BadInput(f"the comparison in {path} has 0 finished runs of {len(inside)}, expected at least 1")
            found += _in_order(kept, _names(path / "compare.toml", "compare"))
            continue
        kept = [run for run in inside if any((run / "records").glob("*.parquet")) or (run / "checkpoints").is_dir()]
        if not kept:
            raise BadInput(f"the folder {path} has 0 runs that have recorded something, of {len(inside)} runs in it")
        found += kept
    return list(dict.fromkeys(found))


def is_index(paths: Iterable[Path]) -> bool:
    """Whether these are folders with runs in them, other than comparisons: one bad run must not hide the others."""
    return not any((path / name).is_file() for path in paths for name in ("settings.toml", "compare.toml"))


def runs_inside(folder: Path) -> list[Path]:
    """All directories of runs below a folder, in the order of their names; links are not followed."""
    found = []
    for place, folders, files in os.walk(folder):
        if "settings.toml" in files:
            found.append(Path(place))
            folders.clear()  # nothing in a run is another one
        else:
            folders.sort()
    return found


def _is_finished(run: Path) -> bool:
    try:
        return bool(_read_json(run / "scores.json").get("finished"))
    except BadInput:  # damaged
        return False


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


def _read_part(path: Path) -> pa.Table | None:
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
            return file.read(columns=COLUMNS).combine_chunks()
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {short(error)}") from None


def _tasks(rows: pa.Table) -> np.ndarray:
    """The task of each row; -1: the stream knows no tasks."""
    found: np.ndarray = rows["task"].combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
    return found


class Saved(NamedTuple):
    """What a report takes from a checkpoint. The learner, which may be large, is not read."""

    classes: int
    first: int  # the first position of the part that is not full yet
    rows: pa.Table  # of that part
    seconds: float | None


def _read_checkpoint(path: Path) -> Saved | None:
    """What is in a checkpoint; None when it cannot be read."""
    import pyarrow as pa

    try:
        state = read_checkpoint(path, ["records", "scores", "seconds"])
        records, scores = state["records"], state["scores"]
        texts = pa.array(records["texts"], pa.string())
        columns = {name: pa.array(np.asarray(records["rows"][name])) for name in COLUMNS}
        for name in ("label", "predicted"):
            number = np.asarray(records["rows"][name])
            columns[name] = texts.take(pa.array(number, mask=number < 0))
        classes = scores["num_labels"] if scores["classes"] is None else scores["classes"]
        first = part_bounds(int(records["position"]))[0]
        return Saved(int(classes), first, pa.table(columns), state.get("seconds"))
    except (BadCheckpoint, OSError, KeyError, TypeError, ValueError, IndexError, pa.ArrowException):
        return None  # removed meanwhile, damaged, or older
