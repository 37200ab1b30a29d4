"""What every table is: rows with named columns that are read in blocks."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput
from prequential.streams.formats.encoding import Column
from prequential.streams.labeled_rows import LABEL_NAMES

SAMPLE = 4096  # rows from which the kinds of the columns are decided
BLOCK_ROWS = 4096
BLOCK_BYTES = 2**20  # how much of a file one block of rows should take, at most
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
UNNAMED = re.compile(r"__index_level_\d+__$")  # what pandas calls an index without a name
ROW = "__row__"  # in a sorted copy, the column that says which row of the table it was


class Table(ABC):
    """Rows that can be read by blocks, in any order. A new kind of table is one file with a subclass of this."""

    name: str  # for messages
    schema: pa.Schema
    starts: np.ndarray  # (blocks + 1,) the row at which each block begins, and at the end the number of rows
    paths: Sequence[Path] = ()  # the files it is read from
    is_text: bool = False  # whether the types of the columns are guessed from text, and options say how
    note: str = ""  # what the user should know about what is read
    written: Mapping[str, Any] = MappingProxyType({})  # how values are written where they are text, as `Schema` has it

    @abstractmethod
    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        """The rows of a block, and those of them that cannot be read: what is wrong, by row of the block."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the rows."""

    def blocks(self, columns: Sequence[Column]) -> Iterator[tuple[pa.Table, dict[int, str]]]:
        """All blocks, one after the other."""
        for i in range(len(self.starts) - 1):
            yield self.block(i, columns)

    def where(self, row: int) -> str:
        """How a row is called in a message; the first is row 1."""
        return f"{self.name}, row {row + 1}"

    def sorted_by(self, column: str) -> Table | None:
        """The table in another order, where that is cheap; None where a sorted copy has to be made."""
        return None

    def declared_classes(self, label: str) -> int | None:
        """How many labels a column can hold, where the file says so."""
        return None

    # What the columns are is decided in the order of time, so a sorted copy is made before it is known. These three
    # say what such a copy keeps; files that know their types need none of them.

    def blocks_to_store(
        self, columns: Sequence[Column], read: Sequence[Column]
    ) -> Iterator[tuple[pa.Table, pa.Table, dict[int, str]]]:
        """All blocks as a copy keeps them, with the columns `read` of each and what is wrong, as in `block`."""
        for rows, bad in self.blocks(columns):
            yield rows, rows, bad

    def from_stored(self, kept: pa.Table, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        """What `block` gives, of rows as a copy keeps them."""
        return kept.select([column.name for column in columns]), {}

    def types(self, kept: pa.Table, label: str | None) -> pa.Schema:
        """The types of the columns; a file without types guesses them from the first rows."""
        return self.schema

    def label_type(self, name: str) -> pa.DataType:
        """The type of a column of labels, in the order of the file."""
        return self.schema.field(name).type

    def __len__(self) -> int:
        return int(self.starts[-1])


def suffix_of(path: Path) -> str:
    """How the name of a file ends, compression left out.

    >>> suffix_of(Path("a/Prices.CSV.gz"))
    '.csv'
    """
    suffix = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if suffix in COMPRESSED and inner in (".csv", ".tsv", ".txt") else suffix


def suffixes_of(path: Path, most: int = 10_000) -> set[str]:
    """How the names of a file, or of the first files below a folder, end; compression left out."""
    if path.is_file():
        return {suffix_of(path)}
    return {suffix_of(part) for part in islice(path.rglob("*"), most) if part.is_file()}


def index_columns(schema: pa.Schema) -> set[str]:
    """The columns that are the index of a pandas frame, as pandas notes it."""
    try:
        about = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        listed = about.get("index_columns", []) if isinstance(about, dict) else []
    except (ValueError, RecursionError):  # a note that cannot be read names none
        listed = []
    named = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    return named | {name for name in schema.names if UNNAMED.match(name)}


def without_views(rows: pa.Table) -> pa.Table:
    """The rows with text views, which polars makes and Arrow can hardly work with, as ordinary text."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if not any(found in plain for found in rows.schema.types):
        return rows
    return rows.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in rows.schema]))


def default_label(names: Sequence[str], taken: set[str | None]) -> str:
    free = [name for name in names if name not in taken]
    if not free:
        raise BadInput(f"no column is left for the label: the columns are {', '.join(names)}")
    called = [name for name in free if name.lower() in LABEL_NAMES]
    return called[0] if called else free[-1]
