"""A record of every example, kept as a folder of Parquet files that pandas, Polars and DuckDB read as one table."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

    from prequential.learners.base import Charges

FIRST_PART = 1024  # a short first part, so that a run can be looked at early
PART = 65536  # the examples of a full part
ROW = np.dtype(  # one example while it waits for its part to be full; texts are numbers into a list, -1 is "none"
    [("label", "i4"), ("predicted", "i4"), ("log_loss", "f8"), ("correct", "?"), ("confidence", "f8"), ("task", "i4")]
)


def part_bounds(position: int) -> tuple[int, int]:
    """The first position of the part that holds this position, and the one after its last.

    It depends on nothing but the position, so a run leaves the same files however often it was interrupted.

    >>> part_bounds(0), part_bounds(1500), part_bounds(70000)
    ((0, 1024), (1024, 2048), (65536, 131072))
    """
    if position < FIRST_PART:
        return 0, FIRST_PART
    if position < PART:
        stop = 1 << position.bit_length()
        return stop // 2, stop
    first = position // PART * PART
    return first, first + PART


class RecordWriter:
    """Writes one row per example: position, label, predicted, log_loss, probability, correct, confidence, task.

    `predicted` is null before any label was met and `task` is null in a stream without tasks. Labels are written as
    text. Rows wait in memory until their part is full; `close` writes the last, short part.

    Parameters
    ----------
    directory
        The folder of the parts. It is made when the first part is written.

    Examples
    --------
    >>> import tempfile
    >>> from prequential.learners.base import Charges
    >>> folder = tempfile.mkdtemp()
    >>> writer = RecordWriter(folder)
    >>> charges = Charges(np.array([0.7, 0.2]), np.array([-1, 0]), np.array([False, True]), np.array([0.0, 0.8]))
    >>> writer.append(0, ["cat", "cat"], charges, known_labels=["cat"])
    >>> writer.close()
    >>> next(read_records(folder, ["label", "predicted", "log_loss"])).to_pydict()
    {'label': ['cat', 'cat'], 'predicted': [None, 'cat'], 'log_loss': [0.7, 0.2]}
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.position = 0  # how many examples it was given
        self._rows = np.zeros(PART, ROW)  # those not yet in a full part
        self._texts: dict[str, int] = {}  # the texts of the labels in these rows
        self._owns = False  # whether the parts in the folder are known to be this run's

    def append(
        self,
        position: int,
        labels: Sequence[Hashable],
        charges: Charges,
        known_labels: Sequence[Hashable],
        tasks: np.ndarray | None = None,
    ) -> None:
        """Adds consecutive examples, the first of which is the example at this position of the stream.

        Parameters
        ----------
        position
            The position of the first of these examples.
        labels
            Their labels.
        charges
            What they cost.
        known_labels
            The label of each output unit.
        tasks
            The number of the task of each example, where there are tasks.
        """
        n = len(labels)
        if position != self.position:
            raise BadInput(f"records were given example {position}, but the next one is example {self.position}")
        if len(charges.log_loss) != n or (tasks is not None and len(tasks) != n):
            given = "no" if tasks is None else len(tasks)
            raise BadInput(f"example {position}: got {n} labels, {len(charges.log_loss)} charges and {given} tasks")
        if n and charges.predicted.max() >= len(known_labels):
            i = int(charges.predicted.argmax())
            unit = charges.predicted[i]
            raise BadInput(
                f"example {position + i}: unit {unit} was predicted, but only {len(known_labels)} labels are known"
            )
        self._check_folder()
        texts = [str(label) for label in labels]
        guesses = [str(known_labels[unit]) if unit >= 0 else None for unit in charges.predicted.tolist()]
        done = 0
        while done < n:
            first, stop = part_bounds(self.position)
            more = min(n - done, stop - self.position)
            now = slice(done, done + more)
            rows = self._rows[self.position - first : self.position - first + more]
            rows["label"] = [self._number(text) for text in texts[now]]
            rows["predicted"] = [-1 if text is None else self._number(text) for text in guesses[now]]
            rows["log_loss"] = charges.log_loss[now]
            rows["correct"] = charges.correct[now]
            rows["confidence"] = charges.confidence[now]
            rows["task"] = -1 if tasks is None else tasks[now]
            self.position += more
            done += more
            if self.position == stop:
                self._write(first)
                self._texts = {}

    def close(self) -> None:
        """Writes the rows of the last, short part. Examples may still be added: the full part will replace it."""
        self._check_folder()
        first, _ = part_bounds(self.position)
        if self.position > first:
            self._write(first)

    def clear(self) -> None:
        """Deletes every part in the folder and starts again from example 0."""
        self._delete_from(0)
        self.position, self._texts, self._owns = 0, {}, True

    def state(self) -> dict[str, Any]:
        """The rows that are not in a full part yet, as arrays and JSON values."""
        waiting = self._rows[: self.position - part_bounds(self.position)[0]]
        columns = {name: waiting[name].copy() for name in ROW.names or ()}
        return {"position": self.position, "texts": list(self._texts), "rows": columns}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from exactly where `state()` was taken; the folder then holds the examples before that, and no later one."""
        position = int(state["position"])
        current, _ = part_bounds(position)
        first = 0
        while first < current:
            if not self._path(first).is_file():
                raise BadCheckpoint(
                    f"{self._path(first)} is missing, but the checkpoint at example {position} goes on after it"
                )
            first = part_bounds(first)[1]
        for name, column in state["rows"].items():
            self._rows[name][: position - current] = column
        self._texts = {text: number for number, text in enumerate(state["texts"])}
        self.position, self._owns = position, True
        self.close()  # first, so that no row is ever missing from the folder
        self._delete_from(position)

    def _check_folder(self) -> None:
        if not self._owns and (parts := _parts(self.directory)):
            raise BadInput(
                f"{self.directory} already holds the records of another run ({len(parts)} parts, expected none)"
            )
        self._owns = True

    def _delete_from(self, first: int) -> None:
        for part in _parts(self.directory):
            if _first_position(part) >= first:
                part.unlink()
        for left_over in self.directory.glob(".part-*.parquet.*.tmp"):  # of a run killed while it wrote
            left_over.unlink()

    def _number(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _path(self, first: int) -> Path:
        return self.directory / f"part-{first:012d}.parquet"

    def _write(self, first: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = self._rows[: self.position - first]
        texts = pa.array(list(self._texts), pa.string())
        table = pa.table(
            {
                "position": pa.array(np.arange(first, self.position)),
                "label": texts.take(pa.array(rows["label"])),
                "predicted": texts.take(pa.array(rows["predicted"], mask=rows["predicted"] < 0)),
                "log_loss": pa.array(rows["log_loss"]),
                "probability": pa.array(np.exp(-rows["log_loss"])),
                "correct": pa.array(rows["correct"]),
                "confidence": pa.array(rows["confidence"]),
                "task": pa.array(rows["task"], mask=rows["task"] < 0),
            }
        )
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="zstd",
            row_group_size=PART,
            use_dictionary=["label", "predicted", "task"],
            column_encoding={"position": "DELTA_BINARY_PACKED"},  # consecutive numbers then take no room
        )
        write_atomically(self._path(first), sink.getvalue().to_pybytes())


def read_records(directory: str | Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a run in order, one batch after the other, never more than one part in memory.

    Parameters
    ----------
    directory
        The folder the records were written to.
    columns
        The columns to read; all when not given.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = _parts(Path(directory))
    if not parts:
        raise BadInput(f"{directory} holds no records: expected files named part-000000000000.parquet and so on")
    expected = 0
    for part in parts:
        if _first_position(part) != expected:
            raise BadInput(f"{part} starts at example {_first_position(part)}, expected {expected}: a part is missing")
        try:
            with pq.ParquetFile(part) as file:
                for name in columns or ():
                    if name not in file.schema_arrow.names:
                        raise BadInput(f"{part} has no column {name!r}, only {', '.join(file.schema_arrow.names)}")
                for batch in file.iter_batches(batch_size=PART, columns=None if columns is None else list(columns)):
                    yield batch if columns is None else batch.select(list(columns))  # a file keeps an order of its own
                expected += file.metadata.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise BadInput(f"{part} is damaged: {error}") from None


def read_task_starts(directory: str | Path) -> np.ndarray | None:
    """The positions where tasks begin, found in the records of a run; None when they tell of no tasks."""
    found: list[np.ndarray] = []
    latest, position = -1, 0
    for batch in read_records(directory, ["task"]):
        task = batch.column(0).fill_null(-1).to_numpy(zero_copy_only=False)
        found.append(position + np.flatnonzero(np.diff(task, prepend=latest)))
        latest = int(task[-1])
        position += len(task)
    starts = np.concatenate(found)
    return starts if len(starts) else None


def _parts(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("part-*.parquet") if path.stem[5:].isdecimal())


def _first_position(part: Path) -> int:
    return int(part.stem[5:])
