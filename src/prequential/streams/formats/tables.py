"""Streams from tables: CSV, Parquet and Arrow files, and data frames, read in blocks of rows."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput, BadSetting, ColumnWarning
from prequential.streams.cache import cached_array, file_stamp
from prequential.streams.formats import sorting
from prequential.streams.formats.csv_rows import looks_like
from prequential.streams.formats.encoding import (
    Column,
    kind_of,
    label_column,
    labels,
    type_name,
    whole,
)  # fmt: skip
from prequential.streams.formats.table import (
    BLOCK_ROWS,
    SAMPLE,
    UNNAMED,
    Table,
    default_label,
    index_columns,
    suffixes_of,
)
from prequential.streams.limits import reading as reading_from
from prequential.streams.stream import Chunk, Stream

PART_BYTES = 2**21  # how much of a block is decoded at once, where its rows are wide
KEEP_BYTES = 64 * 2**20  # how much of decoded blocks is kept: a few blocks for each of many readers
WHOLE = 2**62  # more rows than any block has
UNDECODED = 16  # blocks of rows that are kept while parts of them are decoded
KIND_NAMES = {
    "number": "numbers", "flag": "true/false", "time": "time", "clock": "times of day", "category": "categories",
    "text": "text", "group": "group", "vector": "vectors", "any": "empty in the first rows",
}  # fmt: skip


@dataclass
class Block:
    x: np.ndarray  # (rows, features)
    y: list[Hashable]
    bad: dict[int, str]  # what is wrong with a row


class TableStream(Stream):
    """The rows of a table as examples, in the order of the file or of a time column.

    Only the first 4096 rows, in the order of the stream, decide how a column becomes features (see
    `prequential.streams.formats.encoding`), and each row is encoded by itself. Memory does not depend on the number of
    rows.

    Parameters
    ----------
    source
        A path (.csv, .tsv, .csv.gz and the like, .parquet, .arrow, .feather, a folder of them, or a saved Hugging Face
        data set), a pandas, polars or Arrow data frame, or a `Table`.
    label
        The column to predict; by default the one called label, y, target or class, else the last (the index of a
        pandas frame does not count).
    features
        The columns to predict it from; by default all others, except a time column that is only a number.
    time
        The column to order by: numbers or dates. If the rows are not in its order, a sorted copy is written once to
        the cache folder (PREQUENTIAL_CACHE or the user's), out of core.
    group
        A column that says to whom or what a row belongs, such as a user.
    classes
        How many labels there can be, or which. The file is not searched for them, but may declare them.
    kinds
        How columns are to be read where the first rows mislead: {"zip": "category", "title": "text"}.
    buckets
        How many features a category becomes.
    missing_indicators
        Whether columns get a feature that says "missing": all (True), none (False), or (None) those with
        missing values in the first rows.
    keep_ids
        Whether a column that is different in every one of the first rows, such as the number of an order, is a feature.
        By default it is left out, and a `ColumnWarning` and `describe` name it; one that `features` or `kinds` name is
        always kept.
    schema
        How columns are read, instead of deciding it from the first rows: that of another stream or of a learner, so
        that the same columns become the same features.
    reading
        How columns are read: 2, or 1 as in version 0.1, where ids are features, free text is a category, and dates that
        are text in typed files too. A run that was made so goes on so.
    on_bad_row
        "stop" raises one sentence when a row that cannot be used is reached; "skip" leaves such rows out, which takes
        one pass over the table when it is opened, and `skipped` says how many there were.

    Examples
    --------
    >>> import pyarrow as pa
    >>> age, city = [31.0, None, 54.0, 20.0], ["Ulm", "Bonn", "Ulm", None]
    >>> frame = pa.table({"age": age, "city": city, "bought": ["no", "yes", "no", "no"]})
    >>> stream = TableStream(frame, buckets=4)
    >>> stream.feature_names
    ['age', 'age missing', 'city 0', 'city 1', 'city 2', 'city 3', 'city missing']
    >>> chunk = stream.read(0, 2)
    >>> chunk.x[:, :2].tolist(), chunk.y
    ([[31.0, 0.0], [nan, 1.0]], ['no', 'yes'])
    """

    missing = True

    def __init__(
        self,
        source: Any,
        *,
        label: str | None = None,
        features: str | Sequence[str] | None = None,
        time: str | None = None,
        group: str | None = None,
        classes: int | Sequence[Hashable] | None = None,
        kinds: Mapping[str, str] | None = None,
        buckets: int = 16,
        missing_indicators: bool | None = None,
        keep_ids: bool = False,
        schema: Any = None,
        reading: int = 2,
        on_bad_row: str = "stop",
    ) -> None:
        if reading not in (1, 2):
            raise BadSetting(f"reading ({reading!r}) must be 1 or 2")
        if schema is not None and not hasattr(schema, "fill_table"):
            raise BadSetting(f"schema is {schema!r}, expected a Schema, such as stream.schema or learner.schema")
        self._reading, self._given = reading, schema
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        if buckets < 1:
            raise BadSetting(f"buckets ({buckets}) must be at least 1")
        self.table = as_table(source)
        self.on_bad_row = on_bad_row
        self.skipped = 0  # rows left out because they cannot be used
        rows = len(self.table)
        if rows == 0:
            raise BadInput(f"{self.table.name} has no rows")
        if kinds is not None and not isinstance(kinds, Mapping):
            raise BadSetting(f"kinds is {kinds!r}, expected a kind for each column, such as {{'zip': 'category'}}")
        # pandas may call columns 0, 1, …, which are '0', '1', … here
        kinds = {str(name): kind for name, kind in (kinds or {}).items()}
        label, time, group = (None if name is None else str(name) for name in (label, time, group))
        features = [features] if isinstance(features, str) else features and [str(name) for name in features]
        names = _distinct(self.table)
        for name in [*kinds, *(features or []), *(name for name in (label, time, group) if name is not None)]:
            if name not in names:
                raise BadInput(f"{self.table.name} has no column {name!r}; its columns are {', '.join(names)}")
        for i, name in enumerate(features or []):
            if name in (features or [])[:i]:
                raise BadSetting(f"features names column {name!r} twice, expected different columns")
        named = {*(features or []), *kinds}  # by the user
        index = index_columns(self.table.schema)
        label = label or default_label([name for name in names if name not in index], {time, group})
        self._time = None if time is None else sorting.time_column(self.table, time)
        if schema is not None:
            if features is not None or group is not None or kinds.keys() - {label}:
                raise BadSetting(
                    "schema says how columns are read, so features, group and kinds cannot be given with it"
                )
            features = [column.name for column in schema.columns if column.name in names and column.name != label]
        elif features is None:
            plain = {time} if self._time is None or self._time.kind == "number" else set()
            features = [name for name in names if name not in {label, group, *plain} and not UNNAMED.match(name)]
        if not features and group is None:
            raise BadInput(f"{self.table.name} has no columns besides {label!r} to predict it from")
        for use, names_used in (("a feature", features), ("the group", [group]), ("the time", [time])):
            if label in names_used:  # x or the order would tell it
                raise BadInput(f"column {label!r} is the label and cannot also be {use}")
        if group is not None:
            kinds[group] = "group"
            features = [*(name for name in features if name != group), group]
        asked = kinds if schema is None else {column.name: column.kind for column in schema.columns}
        for name in {*features, *kinds} - {label}:  # before the rows are sorted, which can take long
            kind_of(name, self.table.schema.field(name).type, asked.get(name))
        if label in kinds:
            label_column(label, self.table.schema.field(label).type, kinds[label])
        if self._time is not None:
            self.table, self._time = sorting.in_order(self.table, self._time, [*features, label], on_bad_row)
        with reading_from(self.table.name):
            self._decide(features, label, kinds, buckets, missing_indicators, {*names} if keep_ids else named)
        if self.left_out:
            warnings.warn(f"{self.table.name}: {self.about_ids()}", ColumnWarning, stacklevel=2)
        self.feature_names = self.schema.feature_names
        self.classes = classes if classes is not None else self.table.declared_classes(label)
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._undecoded: OrderedDict[int, tuple[pa.Table, dict[int, str]]] = OrderedDict()
        # rows that are decoded at once: whole blocks where some rows are left out, to know which are which
        part = max(64, PART_BYTES // (8 * self.schema.width))
        if any(column.kind.startswith("text:") for column in self.schema.columns):  # which takes long
            part = 64
        self._part = part if on_bad_row == "stop" and part < BLOCK_ROWS else WHOLE
        self._lock = threading.Lock()
        self._options = " ".join(map(str, [*self.schema.columns, self._label, time, on_bad_row]))
        self._hash: str | None = None
        bad = np.zeros(len(self.table.starts), np.int64)
        if on_bad_row == "skip":
            bad = cached_array(f"bad-rows-{self.fingerprint()}-{file_stamp(*self.table.paths)}", self._count_bad)
        self._starts = self.table.starts - np.cumsum(bad)
        self.skipped = rows - int(self._starts[-1])
        if self._starts[-1] == 0:
            raise BadInput(
                f"{self.table.name}: none of the {rows} rows can be used; the first: {self._first_bad_row()}"
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def fingerprint(self) -> str:
        """A hash of the file's content and of how it is read."""
        if self._hash is None:
            self._hash = hashlib.sha256(f"{self.table.fingerprint()} {self._options}".encode()).hexdigest()[:32]
        return self._hash

    def describe(self) -> str:
        """How the columns are read, in one line, with hints where text that is hashed looks like something else.

        >>> import pyarrow as pa
        >>> TableStream(pa.table({"price": [1.5], "shop": ["a"], "share": ["5 %"], "up": [1]})).describe()
        "label 'up' (whole numbers); numbers: price; categories: shop; hashed text that looks like percentages: share"
        """
        read: dict[str, list[str]] = {}
        for column in self.schema.columns:
            looks, remedy = self._hints.get(column.name, ("", ""))
            kind, _, encoder = column.kind.partition("#")[0].partition(":")
            what = (
                f"hashed text that looks like {looks}" if looks else KIND_NAMES[kind] + f" by {encoder}" * bool(encoder)
            )
            read.setdefault(f"{what}\0{remedy if self.table.is_text else ''}", []).append(column.name)
        parts = [f"label {self._label.name!r} ({type_name(self._label.type)})"]
        for key in sorted(read, key=lambda key: key.startswith("hashed")):
            (what, remedy), names = key.split("\0"), read[key]
            shown = ", ".join(names) if len(names) <= 9 else f"{', '.join(names[:8])}, … ({len(names)})"
            parts.append(f"{what}: {shown}{f' ({remedy})' if remedy else ''}")
        parts += [self.about_ids()] if self.left_out else []
        parts += [f"in the order of {self._time.name!r}"] if self._time is not None else []
        parts += [self.table.note] if self.table.note else []
        parts += [f"rows left out because they cannot be used: {self.skipped}"] if self.skipped else []
        return "; ".join(parts)

    def _read(self, start: int, stop: int) -> Chunk:
        x: list[np.ndarray] = []
        y: list[Hashable] = []
        b = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[b]) + (start - int(self._starts[b])) // self._part * self._part
            end = min(stop, int(self._starts[b + 1]), first + self._part)
            if end > start:
                block = self._block(b, first - int(self._starts[b]))
                here = slice(start - first, end - first)
                if self.on_bad_row == "stop" and block.bad:
                    self._refuse_row(int(self.table.starts[b]) + first - int(self._starts[b]), block.bad, here)
                x.append(block.x[here])
                y += block.y[here]
                start = end
            b += start >= int(self._starts[b + 1])
        return Chunk(np.concatenate(x), y)

    # Blocks.

    def _block(self, b: int, first: int) -> Block:
        """A decoded block, or the part of it that begins with its row `first`, from the few that are kept."""
        with self._lock:
            block = self._blocks.get((b, first))
            if block is None:
                block = self._blocks[b, first] = self._decode(*self._rows(b, first))
                if self.on_bad_row == "skip" and block.bad:
                    good = [i for i in range(len(block.y)) if i not in block.bad]
                    block.x, block.y = block.x[good], [block.y[i] for i in good]
                room = max(2, KEEP_BYTES // max(1, block.x.nbytes + 64 * len(block.y)))
                while len(self._blocks) > room:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end((b, first))
            return block

    def _rows(self, b: int, first: int) -> tuple[pa.Table, dict[int, str]]:
        """The rows of a block, or a part of them; blocks of which parts are read are kept for a while."""
        if self._part == WHOLE:
            return self.table.block(b, self._wanted())
        if b not in self._undecoded:
            self._undecoded[b] = self.table.block(b, self._wanted())
            while len(self._undecoded) > UNDECODED:
                self._undecoded.popitem(last=False)
        self._undecoded.move_to_end(b)
        rows, bad = self._undecoded[b]
        stop = first + self._part
        return rows.slice(first, self._part), {i - first: what for i, what in bad.items() if first <= i < stop}

    def _wanted(self) -> list[Column]:
        time = [] if self._time is None else [self._time]
        there = [column for column in self.schema.columns if column.name in self._names]
        return list({column.name: column for column in [*time, *there, self._label]}.values())

    def _decode(self, rows: pa.Table, bad: dict[int, str]) -> Block:
        with reading_from(self.table.name):
            return self._decoded(rows, bad)

    def _decoded(self, rows: pa.Table, bad: dict[int, str]) -> Block:
        x = self.schema.fill_table(rows, bad)
        y, empty = labels(self._label, whole(rows.column(self._label.name)))
        if self._time is not None:
            empty |= sorting.time_keys(self._time, whole(rows.column(self._time.name)))[1]
        return Block(x, y, empty | bad)

    def _refuse_row(self, first: int, bad: dict[int, str], here: slice) -> None:
        found = [i for i in bad if here.start <= i < here.stop]
        if found:
            row = min(found)
            raise BadInput(f"{self.table.where(first + row)}, {bad[row]}")

    def _count_bad(self) -> np.ndarray:
        """How many rows cannot be used in each block, moved by one place."""
        return np.array([0, *(len(self._decode(rows, bad).bad) for rows, bad in self.table.blocks(self._wanted()))])

    def _first_bad_row(self) -> str:
        bad = self._decode(*self.table.block(0, self._wanted())).bad
        return bad[min(bad)]

    # Deciding what the columns are.

    def _name_unknown(self) -> None:
        """Names columns that a given schema does not know."""
        time = None if self._time is None else self._time.name
        known = {*self.schema.ignored, time, *(column.name for column in self.schema.columns)}
        unknown = [name for name in self.table.schema.names if name not in known and not UNNAMED.match(name)]
        if unknown:
            more = ", …" if len(unknown) > 5 else ""
            said = f"{', '.join(unknown[:5])}{more} not known to the schema, and not used"
            warnings.warn(f"{self.table.name}: {said}", ColumnWarning, stacklevel=4)

    def about_ids(self) -> str:
        """Which columns are left out, and how to keep them."""
        one = self.left_out[0]
        shown = ", ".join(self.left_out[:5]) + (", …" if len(self.left_out) > 5 else "")
        return f"left out, as it is different in every row: {shown} (kinds={{{one!r}: 'category'}} keeps it)"

    def _decide(
        self,
        names: Sequence[str],
        label: str,
        kinds: dict[str, str],
        buckets: int,
        indicators: bool | None,
        kept: set[str],
    ) -> None:
        """What the columns are, from the types and the first rows of the stream; those in `kept` are never left out."""
        from prequential.streams.formats.schema import Schema, decide_columns

        self._names = set(self.table.schema.names)
        pieces, count = [], 0
        for piece, _, bad in self.table.blocks_to_store([Column(name, "", None, 0) for name in [*names, label]], []):
            there = min(len(piece), SAMPLE - count)  # the same rows, however large the blocks are
            pieces.append(piece.take(pa.array(np.setdiff1d(np.arange(there), list(bad)))))
            count += there
            if count == SAMPLE:
                break
        first_rows = pa.concat_tables(pieces)
        schema = self.table.types(first_rows, label)
        self._label = label_column(label, schema.field(label).type, kinds.get(label))
        types = {name: schema.field(name).type for name in names}
        # a column that begins with whole numbers may go on with others
        asked = [
            Column(name, "category", pa.float64() if pa.types.is_integer(found) else found, 1)
            for name, found in types.items()
        ]
        rows, bad = self.table.from_stored(first_rows, asked)
        sample = rows.take(pa.array(np.setdiff1d(np.arange(len(rows)), list(bad)))) if bad else rows
        self._hints: dict[str, tuple[str, str]] = {}  # what hashed text looks like, and what to say then
        self.left_out: list[str] = []  # columns that are ids
        if self._given is not None:
            self.schema = self._given.changed(ignored=(*self._given.ignored, label))
            self._name_unknown()
            return
        asked_kinds = dict(kinds)
        if self._time is not None:
            asked_kinds.setdefault(self._time.name, self._time.kind)  # as it was read for the order
        columns, self.left_out = decide_columns(
            {name: sample.column(name) for name in names},
            types,
            asked_kinds,
            buckets=buckets,
            indicators=indicators,
            kept=kept,
            version=self._reading,
        )
        for column in columns:
            if column.kind == "category" and column.name not in kinds:
                self._hints[column.name] = looks_like(sample.column(column.name))
        others = [name for name in self.table.schema.names if name not in {column.name for column in columns}]
        self.schema = Schema(tuple(columns), tuple(others), **self.table.written)


def as_table(source: Any, max_bytes: int | None = None) -> Table:
    """The table behind a path or a data frame; `max_bytes`: see `prequential.streams.limits`."""
    if isinstance(source, Table):
        return source
    if not isinstance(source, (str, Path)):
        from prequential.streams.formats.frames import FrameTable

        return FrameTable(source)
    path = Path(source)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    suffixes = suffixes_of(path)
    if suffixes & {".parquet", ".pq"}:
        from prequential.streams.formats.parquet import ParquetTable

        return ParquetTable(path, max_bytes=max_bytes)
    if suffixes & {".arrow", ".feather", ".ipc"}:
        from prequential.streams.formats.arrow import ArrowTable

        return ArrowTable(path, max_bytes=max_bytes)
    if suffixes & {".csv", ".tsv"} or (path.is_file() and ".txt" in suffixes):
        from prequential.streams.formats.csv import CsvTable

        return CsvTable(path, max_bytes=max_bytes)
    raise BadInput(f"{path} is no table; expected a .csv, .tsv, .parquet, .arrow or .feather file, or a folder of them")


def _distinct(table: Table) -> list[str]:
    names: list[str] = table.schema.names
    for name, count in Counter(names).items():
        if count > 1:
            raise BadInput(f"{table.name} has two columns called {name!r}; expected different names")
    return names
