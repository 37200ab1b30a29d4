"""CSV files: one scan finds where every few thousandth row begins; after that any block is parsed by itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from prequential.errors import BadInput
from prequential.streams.encoding import Column, cast
from prequential.streams.tables import BLOCK_BYTES, BLOCK_ROWS, Table

READ = 16 * 2**20  # bytes scanned at once
MISSING = [*pacsv.ConvertOptions().null_values, "?"]
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?$"
MOSTLY = 0.9  # a column is numbers if so many of its first values are; the others are bad rows


class CsvTable(Table):
    """A CSV file, UTF-8, with a line of column names.

    Opening scans the file once for the ends of rows (about a second for each gigabyte) and keeps one byte position
    for each block of up to 4096 rows. No copy of the file is made.

    Parameters
    ----------
    path
        The file.
    delimiter
        What separates fields; by default the one of `, ; tab |` that is most frequent in the first line.
    header
        Whether the first line holds the names of the columns; otherwise they are called f0, f1, …
    quotes
        Whether fields may be "quoted", and then hold delimiters and line ends.
    decimal_point
        "," in files that write 3,14.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        delimiter: str | None = None,
        header: bool = True,
        quotes: bool = True,
        decimal_point: str = ".",
    ) -> None:
        self.path = Path(path)
        self.name = self.path.name
        with self.path.open("rb") as file:
            head = file.read(READ)
        if not head.strip():
            raise BadInput(f"{self.path} is empty")
        if b"\n" not in head and b"\r" in head.rstrip():
            raise BadInput(f"{self.path} ends its lines with a bare carriage return; expected line feeds")
        begin = 3 if head.startswith(b"\xef\xbb\xbf") else 0
        first_line = head[begin:].split(b"\n", 1)[0]
        self.delimiter = delimiter or max(",;\t|", key=lambda mark: first_line.count(mark.encode()))
        self.quotes, self.decimal_point = quotes, decimal_point
        ends = self._row_ends(head[begin:], len(head) < READ)
        if len(ends) == 0:
            raise BadInput(f"{self.path}: the first row does not end within {READ} bytes; is a quote not closed?")
        fields = self._fields(head[begin : begin + int(ends[0])])
        self.names = fields if header else [f"f{i}" for i in range(len(fields))]
        self._check_names(header)
        self._begin = begin + int(ends[0]) if header else begin
        self._rows_a_block = int(np.clip(BLOCK_BYTES * len(ends) // int(ends[-1]), 16, BLOCK_ROWS))
        self._scan()
        self.schema = self._guess() if len(self) else pa.schema([(name, pa.string()) for name in self.names])

    def fingerprint(self) -> str:
        return f"csv {self._hash} {self.delimiter!r} {self.names} {self.quotes} {self.decimal_point}"

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        expected = int(self.starts[i + 1] - self.starts[i])
        text = self._text(i)
        names = list(dict.fromkeys(column.name for column in columns))
        bad: dict[int, str] = {}
        try:
            rows = self._parse(text, names, {column.name: column.type for column in columns}, bad)
        except pa.ArrowInvalid:  # some cell is not what it should be: find out which
            bad = {}
            rows = self._parse(text, names, dict.fromkeys(names, pa.binary()), bad)
            arrays = []
            for column in columns:
                values, wrong = cast(column, rows.column(column.name).combine_chunks(), column.type)
                arrays.append(values)
                present = np.setdiff1d(np.arange(expected), list(bad)) if bad else None
                for row, what in wrong.items():
                    bad.setdefault(row if present is None else int(present[row]), what)
            rows = pa.table(arrays, names=[column.name for column in columns])
        lost = expected - len(rows)
        if lost:
            rows = self._with_gaps(i, rows, bad, expected)
        return rows, bad

    # Where the rows are.

    def _scan(self) -> None:
        """Finds the rows, and hashes the file on the way."""
        digest = hashlib.sha256()
        offsets, rows, at, rest = [self._begin], 0, self._begin, b""
        with self.path.open("rb") as file:
            digest.update(file.read(self._begin))
            while fresh := file.read(READ):
                digest.update(fresh)
                data = rest + fresh
                ends = self._row_ends(data, False)
                rows, offsets = self._mark(rows, offsets, at, ends)
                done = int(ends[-1]) if len(ends) else 0
                at, rest = at + done, data[done:]
                if len(rest) > 4 * READ:
                    raise BadInput(
                        f"{self.where(rows)}: the row does not end within {len(rest)} bytes; is a quote not closed?"
                    )
            if rest:
                ends = self._row_ends(rest, True)
                rows, offsets = self._mark(rows, offsets, at, ends)
        size = self.path.stat().st_size
        if len(offsets) > 1 and rows % self._rows_a_block == 0:
            offsets[-1] = size  # empty lines may follow the last row
        elif offsets[-1] != size:
            offsets.append(size)
        self._offsets = np.array(offsets)
        self.starts = np.minimum(np.arange(len(offsets)) * self._rows_a_block, rows)
        self._hash = digest.hexdigest()

    def _mark(self, rows: int, offsets: list[int], at: int, ends: np.ndarray) -> tuple[int, list[int]]:
        """Notes where each block begins that begins after one of these row ends."""
        first = -(rows + 1) % self._rows_a_block  # the end before the first row of the next block
        offsets += (at + ends[first :: self._rows_a_block]).tolist()
        return rows + len(ends), offsets

    def _row_ends(self, data: bytes, last: bool) -> np.ndarray:
        """The positions after each row of data that begins with a row; `last`: the end of data ends a row too."""
        codes = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(codes == 10) + 1
        if self.quotes and b'"' in data:
            ends = self._outside_quotes(codes, ends, last)
        if last and (len(ends) == 0 or ends[-1] < len(data)):
            ends = np.append(ends, len(data))
        if len(ends) == 0:
            return ends
        lengths = np.diff(ends, prepend=0)
        empty = (lengths == 1) & (codes[ends - 1] == 10)
        two = np.flatnonzero(lengths == 2)
        empty[two] = (codes[ends[two] - 2] == 13) & (codes[ends[two] - 1] == 10)
        if not empty.any():
            return ends
        # an empty line is no row: it belongs to the row after it, and at the end to nobody
        kept: np.ndarray = ends[~empty]
        return kept

    def _outside_quotes(self, codes: np.ndarray, ends: np.ndarray, last: bool) -> np.ndarray:
        """Those line ends that no quoted field holds: an even number of quotes stands before them."""
        quotes = np.flatnonzero(codes == 34)
        opening = quotes[::2]
        allowed = np.zeros(256, bool)
        allowed[[10, 13, 34, ord(self.delimiter)]] = True
        wrong = opening[(opening > 0) & ~allowed[codes[opening - 1]]]
        if len(wrong):
            around = bytes(codes[max(0, wrong[0] - 30) : wrong[0] + 10])
            raise BadInput(
                f"{self.path}: a quote stands inside an unquoted field near {around!r}, so it cannot be told where rows end; "
                "double it inside a quoted field, or read the file with quotes=False"
            )
        kept: np.ndarray = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return kept

    # What the rows are.

    def _text(self, i: int) -> bytes:
        start, stop = int(self._offsets[i]), int(self._offsets[i + 1])
        handle = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(handle, stop - start, start)
        finally:
            os.close(handle)

    def _parse(
        self, text: bytes, names: list[str], types: dict[str, pa.DataType] | None, bad: dict[int, str]
    ) -> pa.Table:
        def wrong_length(row: pacsv.InvalidRow) -> str:
            bad[row.number - 1] = f"has {row.actual_columns} fields, expected {row.expected_columns}"
            return "skip"

        return pacsv.read_csv(
            pa.BufferReader(text),
            pacsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self.names),
            pacsv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self.quotes else False,
                newlines_in_values=self.quotes,
                invalid_row_handler=wrong_length,
            ),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=names,
                null_values=MISSING,
                strings_can_be_null=True,
                decimal_point=self.decimal_point,
            ),
        )

    def _with_gaps(self, i: int, rows: pa.Table, bad: dict[int, str], expected: int) -> pa.Table:
        """Puts a row of missing values in the place of each row that has the wrong number of fields."""
        gone = [row for row, what in bad.items() if what.startswith("has ")]
        if len(rows) + len(gone) != expected:
            first, last = self.where(int(self.starts[i])), int(self.starts[i + 1])
            raise BadInput(
                f"{first} to {last}: found {len(rows) + len(gone)} rows, expected {expected}; are quotes or line ends mixed up?"
            )
        places: list[int | None] = [None] * expected
        for place, row in enumerate(np.setdiff1d(np.arange(expected), gone)):
            places[row] = place
        return rows.take(pa.array(places, pa.int64()))

    def _guess(self) -> pa.Schema:
        """The types of the columns, from the first block. A few bad values do not make a column of numbers text."""
        rows = self._parse(self._text(0), self.names, None, {})
        fields = []
        for name in self.names:
            found, values = rows.schema.field(name).type, rows.column(name)
            if pa.types.is_string(found) and values.null_count < len(values):
                known = values.drop_null()
                if self._mostly(known, NUMBER):
                    found = pa.float64()
                elif self._mostly(known, DATE):
                    found = pa.timestamp("us")
            fields.append((name, pa.string() if pa.types.is_null(found) else found))
        return pa.schema(fields)

    def _mostly(self, values: pa.ChunkedArray, pattern: str) -> bool:
        return float(pc.mean(pc.match_substring_regex(values, pattern).cast(pa.float64())).as_py()) >= MOSTLY

    def _fields(self, line: bytes) -> list[str]:
        most = line.count(self.delimiter.encode()) + 1
        row = pacsv.read_csv(
            pa.BufferReader(line),
            pacsv.ReadOptions(autogenerate_column_names=True),
            pacsv.ParseOptions(
                delimiter=self.delimiter, quote_char='"' if self.quotes else False, newlines_in_values=self.quotes
            ),
            pacsv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(most)}),
        )
        return [row.column(i)[0].as_py().strip() or f"column {i + 1}" for i in range(row.num_columns)]

    def _check_names(self, header: bool) -> None:
        if len(self.names) < 2:
            raise BadInput(f"{self.path} has 1 column, separated by {self.delimiter!r}; expected at least 2")
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise BadInput(f"{self.path} has two columns called {twice[0]!r}; expected different names")
        if header and all(name and pc.match_substring_regex(pa.scalar(name), NUMBER).as_py() for name in self.names):
            raise BadInput(
                f"{self.path}: the first line holds only numbers ({self.names[0]}, {self.names[1]}, …), expected the names of "
                "the columns; read it with header=False if it has none"
            )
