"""A record of every example, kept as a folder of Parquet files that pandas, Polars and DuckDB read as one table."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.evaluation.checksums import NAME, START, Checksums, chained, part_checksum, read_checksums
from prequential.storage.checkpoint import short
from prequential.storage.files import make_directory, refuse_links, remove_temporaries, sync_directory, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

    from prequential.learners.charges import Charges

FIRST_PART = 1024  # a short first part, so that a run can be looked at early
PART = 65536  # the examples of a full part
DAMAGED = "_damaged"  # where parts are set aside
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
    text. Rows wait in memory until their part is full; `close` writes the last, short part. The file `_sha256sums`
    beside the parts holds their checksums.

    Parameters
    ----------
    directory
        The folder of the parts. It is made when the first part is written.

    Examples
    --------
    >>> import tempfile
    >>> from prequential.learners.charges import Charges
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
        self._checksums = Checksums(self.directory)
        self.lost: list[int] = []  # the first positions of full parts that were damaged and set aside

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
                self._write(first, full=True)
                self._texts = {}

    def close(self) -> None:
        """Writes the rows of the last, short part. Examples may still be added: the full part will replace it."""
        self._check_folder()
        first, _ = part_bounds(self.position)
        if self.position > first:
            self._write(first, full=False)

    def clear(self) -> None:
        """Deletes every part in the folder and starts again from example 0."""
        self._delete_from(0)
        self._checksums.remove()
        self.position, self._texts, self._owns, self.lost = 0, {}, True, []

    def state_dict(self) -> dict[str, Any]:
        """The rows that are not in a full part yet, as arrays and JSON values."""
        waiting = self._rows[: self.position - part_bounds(self.position)[0]]
        columns = {name: waiting[name].copy() for name in ROW.names or ()}
        vouched = {"digest": self._checksums.digest, "lost": list(self.lost)}
        return {"position": self.position, "texts": list(self._texts), "rows": columns, **vouched}

    def load_state_dict(self, state: dict[str, Any], *, set_aside: bool = False) -> list[str]:
        """Restores what `state_dict()` returned; the folder then holds the examples before that, and no later one.

        Every full part is verified first. One that is missing or damaged is named and nothing is changed, unless it
        shall be set aside: then it is moved to `_damaged`, and the sentences on what is lost are returned.
        """
        position, texts, rows = _checked_state(state)
        current, _ = part_bounds(position)
        refuse_links(self.directory, self.directory / DAMAGED, self.directory / NAME)
        if self._path(current).is_dir():  # which cannot be replaced by a file
            raise BadCheckpoint(f"{self._path(current)} is a directory, expected records; nothing was changed")
        lost = [first for first in _lost(state, current) if not self._path(first).exists()]
        checksums, problems = self._verify(current, state.get("digest"), _lost(state, current))
        if problems and not set_aside:
            (first, why), more = next(iter(problems.items())), len(problems) - 1
            raise BadCheckpoint(
                f"{self._path(first)} {why}{f', and so are {more} more parts' if more else ''}; "
                "nothing was changed: put it back, or go on without its rows: resume --set-aside"
            )
        for first in problems:
            self._set_aside(first)
        self._rows[: position - current] = rows
        self._texts = {text: number for number, text in enumerate(texts)}
        self.position, self._owns = position, True
        self.lost = sorted({*lost, *problems})
        self._checksums.rewrite([(self._path(first).name, checksum) for first, checksum in checksums.items()])
        self.close()  # first, so that no row is ever missing from the folder
        self._delete_from(position)
        return [
            f"{self._path(first)} {why}: it was set aside, and the records lack examples {first:,} to "
            f"{part_bounds(first)[1] - 1:,}; scores do not depend on them"
            for first, why in problems.items()
        ]

    def _verify(self, current: int, digest: str | None, lost: list[int]) -> tuple[dict[int, str], dict[int, str]]:
        """The checksums of all full parts before a position, and what is wrong with those that are damaged."""
        firsts = [first for first in _full_parts(current) if first not in lost]
        found = {first: part_checksum(self._path(first)) for first in firsts if self._path(first).is_file()}
        told = {_first_position(Path(name)): checksum for name, checksum, _ in read_checksums(self.directory)}
        vouched = self._agrees(digest, told, firsts)
        if not vouched and self._agrees(digest, found, firsts):  # only the file of checksums is damaged
            vouched, told = True, dict(found)
        problems: dict[int, str] = {}
        for first in firsts:
            if first not in found:
                problems[first] = "is missing"
            elif digest is not None and found[first] != told.get(first, found[first]):
                problems[first] = "is damaged: it does not match its checksum"
            elif not vouched and (why := self._structure(first)):
                problems[first] = why
        if digest is not None and not vouched and not problems:
            problems = dict.fromkeys(firsts, f"or another part is not the one that was written, and {NAME} is damaged")
        for first in lost:  # put back by hand, perhaps
            if self._path(first).is_file() and (why := self._structure(first)):
                problems[first] = why
            elif self._path(first).is_file():
                found[first] = part_checksum(self._path(first))
        return {first: found[first] for first in sorted(found) if first not in problems}, problems

    def _agrees(self, digest: str | None, checksums: dict[int, str], firsts: list[int]) -> bool:
        """Whether these checksums add up to the digest in a checkpoint."""
        chain = START
        for first in firsts:
            if first not in checksums:
                return False
            chain = chained(chain, checksums[first], self._path(first).name)
        return chain == digest

    def _structure(self, first: int) -> str | None:
        return _structure(self._path(first), first, part_bounds(first)[1])

    def _set_aside(self, first: int) -> None:
        """Moves a damaged part out of the way; nothing is deleted."""
        part = self._path(first)
        if not part.is_symlink() and not part.exists():
            return
        make_directory(self.directory / DAMAGED)
        place = self.directory / DAMAGED / part.name
        while place.exists() or place.is_symlink():
            place = place.with_name(f"{place.name}.again")
        os.replace(part, place)
        sync_directory(self.directory)

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
        remove_temporaries(self.directory)

    def _number(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _path(self, first: int) -> Path:
        return self.directory / f"part-{first:012d}.parquet"

    def _write(self, first: int, *, full: bool) -> None:
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
        data = sink.getvalue().to_pybytes()
        self._checksums.drop_short()  # first: a part must never be there with the checksum of another
        write_atomically(self._path(first), data)
        self._checksums.add(self._path(first).name, data, full=full)


def read_records(
    directory: str | Path, columns: Sequence[str] | None = None, *, verify: bool = True
) -> Iterator[pa.RecordBatch]:
    """The records of a run in order, one batch after the other, never more than one part in memory.

    Parameters
    ----------
    directory
        The folder the records were written to.
    columns
        The columns to read; all when not given.
    verify
        Whether each part is compared with its checksum first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(directory)
    parts = _parts(folder)
    if not parts:
        raise BadInput(f"{directory} holds no records: expected files named part-000000000000.parquet and so on")
    expected = 0
    for number, part in enumerate(parts):
        if _first_position(part) != expected:
            aside = folder / DAMAGED / f"part-{expected:012d}.parquet"
            why = f"the part before it was set aside as {aside}" if aside.exists() else "a part is missing"
            raise BadInput(f"{part} starts at example {_first_position(part)}, expected {expected}: {why}")
        if verify and (wrong := damage(part)):
            raise BadInput(f"{part} {wrong}")
        stop = part_bounds(expected)[1]
        try:
            with pq.ParquetFile(part) as file:
                rows = file.metadata.num_rows
                if not 0 < rows <= stop - expected or (expected + rows < stop and number < len(parts) - 1):
                    raise BadInput(f"{part} is damaged: it has {rows} rows, expected {stop - expected}")
                for name in columns or ():
                    if name not in file.schema_arrow.names:
                        raise BadInput(f"{part} has no column {name!r}, only {', '.join(file.schema_arrow.names)}")
                for batch in file.iter_batches(batch_size=PART, columns=None if columns is None else list(columns)):
                    yield batch if columns is None else batch.select(list(columns))  # a file keeps an order of its own
                expected += rows
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{part} is damaged: {short(error)}") from None
    if verify:
        for name, _, _ in read_checksums(folder):
            if not (folder / name).exists():
                raise BadInput(f"{folder / name} is missing, though its checksum is there")


def damage(part: Path) -> str | None:
    """What is wrong with a part, by its checksum; None if nothing is, or it has no checksum yet.

    A part that is being replaced right now is looked at again.
    """
    why = None
    for _ in range(3):
        try:
            # the checksum is read last: it is dropped before its part is replaced
            found = part_checksum(part)
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            continue
        told = next((checksum for name, checksum, _ in read_checksums(part.parent) if name == part.name), None)
        if told is None or told == found:
            return None
        why = f"is damaged: its checksum is {found[:12]}…, expected {told[:12]}…"
        time.sleep(0.05)
    return why


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


def _full_parts(current: int) -> Iterator[int]:
    """The first positions of the full parts before a position."""
    first = 0
    while first < current:
        yield first
        first = part_bounds(first)[1]


def _lost(state: dict[str, Any], current: int) -> list[int]:
    """The parts before a position that were set aside earlier."""
    lost = {int(first) for first in state.get("lost", [])}
    return [first for first in _full_parts(current) if first in lost]


def _structure(part: Path, first: int, stop: int) -> str | None:
    """What is wrong with a full part that no checksum is known of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(part) as file:
            if (rows := file.metadata.num_rows) != stop - first:
                return f"is damaged: it has {rows} rows, expected {stop - first}"
            where = file.read(columns=["position"]).column(0).to_numpy()
            if not np.array_equal(where, np.arange(first, stop)):
                return f"is damaged: its rows are not those of examples {first} to {stop - 1}"
            for batch in file.iter_batches(batch_size=PART):
                batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"is damaged: {short(error)}"
    return None


def _checked_state(state: dict[str, Any]) -> tuple[int, list[str], np.ndarray]:
    """Position, texts and waiting rows of a state, after making sure that they fit together."""
    position, texts = state["position"], state["texts"]
    if not isinstance(position, int) or position < 0 or not all(isinstance(text, str) for text in texts):
        raise BadCheckpoint(f"the saved records are at example {position!r}, expected a whole number of at least 0")
    rows = np.zeros(position - part_bounds(position)[0], ROW)
    for name in ROW.names or ():
        column = np.asarray(state["rows"][name])
        if column.shape != rows.shape:
            raise BadCheckpoint(f"the saved records have {column.shape} rows of {name}, expected {rows.shape}")
        rows[name] = column
    for name in ("label", "predicted"):
        if len(rows) and not -1 <= rows[name].min() <= rows[name].max() < len(texts):
            raise BadCheckpoint(f"the saved records name {name} {rows[name].max()}, but have {len(texts)} texts")
    return position, texts, rows


def _parts(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("part-*.parquet") if path.stem[5:].isdecimal())


def _first_position(part: Path) -> int:
    return int(part.stem[5:])
