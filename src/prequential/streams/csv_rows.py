"""The text of a CSV as rows: where they end, what types their columns have, and their values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from prequential.errors import BadInput
from prequential.streams.encoding import NUMBER, Column, cast, is_number, shown

MISSING = [*pacsv.ConvertOptions().null_values, "?"]
WHOLE = r"^\s*-?(0|[1-9]\d{0,17})\s*$"  # the label 007 is not 7, and stays text
INTEGER = r"^[-+]?\d{1,19}$"
EXACT = r"^\s*-?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*$"
FLAG = r"^\s*(?i:true|false)\s*$"
DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$"
MOSTLY = 0.9  # a column is numbers if so many of its first values are; the others are bad rows


class CsvRows:
    """How pieces of a CSV are read; each piece holds whole rows."""

    def __init__(self, name: str, delimiter: str, quotes: bool, decimal_point: str) -> None:
        self.name = name  # for messages
        self.delimiter, self.quotes, self.decimal_point = delimiter, quotes, decimal_point
        self.names: list[str] = []  # of the columns

    def ends(self, data: bytes, last: bool) -> np.ndarray:
        """The positions after each row of data that begins with a row; `last`: the end of data ends a row too."""
        codes = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(codes == 10) + 1
        if self.quotes and b'"' in data:
            ends = self._outside_quotes(codes, ends)
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

    def _outside_quotes(self, codes: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Those line ends that no quoted field holds: an even number of quotes stands before them."""
        quotes = np.flatnonzero(codes == 34)
        opening = quotes[::2]
        allowed = np.zeros(256, bool)
        allowed[[10, 13, 34, ord(self.delimiter)]] = True
        wrong = opening[(opening > 0) & ~allowed[codes[opening - 1]]]
        if len(wrong):
            around = bytes(codes[max(0, wrong[0] - 30) : wrong[0] + 10])
            raise BadInput(
                f"{self.name}: a quote stands inside an unquoted field near {around!r}, so it cannot be told where rows end; "
                "double it inside a quoted field, or read the file with quotes=False"
            )
        kept: np.ndarray = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return kept

    def lines(self, text: bytes) -> pa.Table:
        """The rows of a piece as a column of texts, each with its line end."""
        ends = self.ends(text, True)
        text = text[: int(ends[-1])] if len(ends) else b""
        if text and not text.endswith(b"\n"):
            text, ends = text + b"\n", np.append(ends[:-1], ends[-1] + 1)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.table(
            {"line": pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])}
        )

    def text(self, lines: pa.Table) -> bytes:
        """What `lines` was made from."""
        pieces = []
        for chunk in lines.column("line").chunks:  # the values of a chunk lie one behind the other
            _, offsets, data = chunk.buffers()
            if len(chunk) and data is not None:
                places = np.frombuffer(offsets, np.int32)
                start, stop = int(places[chunk.offset]), int(places[chunk.offset + len(chunk)])
                pieces.append(data[start:stop].to_pybytes())
        return b"".join(pieces)

    def header(self, line: bytes) -> list[str]:
        """The fields of the first row."""
        most = line.count(self.delimiter.encode()) + 1
        row = pacsv.read_csv(
            pa.BufferReader(line),
            pacsv.ReadOptions(autogenerate_column_names=True),
            self._parsing(None),
            pacsv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(most)}),
        )
        return [row.column(i)[0].as_py().strip() or f"column {i + 1}" for i in range(row.num_columns)]

    # What the columns are.

    def types(self, text: bytes, label: str | None) -> pa.Schema:
        """The types of the columns, from the first rows: a few bad values do not make a column of numbers text.

        A column of which all values are missing has the type null. Labels are read as text and are whole numbers,
        numbers or true/false only if all of them are; otherwise text, and then NA and null are labels too.
        """
        rows = self._parse(text, self.names, None, {})
        fields = []
        for name in self.names:
            values = rows.column(name)
            if name == label:
                found = self._label_type(text, name)
            elif pa.types.is_integer(values.type) and b"0x" in text.lower():
                found = self._text_type(self._parse(text, [name], {name: pa.string()}, {}).column(name))
            elif pa.types.is_string(values.type) and values.null_count < len(values):
                found = self._text_type(values)
            else:
                found = values.type
            fields.append((name, found))
        return pa.schema(fields)

    def _text_type(self, values: pa.ChunkedArray) -> pa.DataType:
        trimmed = pc.utf8_trim_whitespace(values.drop_null())
        known = trimmed.filter(pc.invert(pc.is_in(trimmed, pa.array(MISSING))))
        if len(known) == 0:
            return pa.null()
        numbers = self._share(known, self._point(NUMBER))
        if numbers >= MOSTLY:  # whole ones, as they would be without the others, keep all digits where they are times
            return pa.int64() if self._share(known, INTEGER) == numbers else pa.float64()
        return pa.timestamp("us") if self._share(known, DATE) >= MOSTLY else pa.string()

    def _label_type(self, text: bytes, name: str) -> pa.DataType:
        values = self._parse(text, [name], {name: pa.binary()}, {}).column(name).drop_null()
        try:
            values = values.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.string()
        if len(values):
            for pattern, found in ((WHOLE, pa.int64()), (self._point(EXACT), pa.float64()), (FLAG, pa.bool_())):
                if self._share(values, pattern) == 1:
                    return found
        return pa.string()

    def _point(self, pattern: str) -> str:
        return pattern.replace(r"\.", f"[{self.decimal_point}]")

    def _share(self, values: pa.ChunkedArray, pattern: str) -> float:
        return float(pc.mean(pc.match_substring_regex(values, pattern).cast(pa.float64())).as_py())

    # What the rows hold.

    def read(
        self, text: bytes, columns: Sequence[Column], expected: int, where: str
    ) -> tuple[pa.Table, dict[int, str]]:
        """The columns of a piece of so many rows, and what is wrong with those rows that cannot be read."""
        columns = columns or [Column(self.names[0], "category", pa.binary(), 0)]  # something must be read to count rows
        names = list(dict.fromkeys(column.name for column in columns))
        unread: dict[int, str] = {}  # rows with too few or too many fields
        wrong: dict[int, str] = {}  # by place among the other rows
        try:
            rows = self._parse(text, names, {column.name: column.type for column in columns}, unread)
        except pa.ArrowInvalid:  # some cell is not what it should be: find out which
            unread = {}
            texts = self._parse(text, names, dict.fromkeys(names, pa.binary()), unread)
            arrays = []
            for column in columns:
                values, found = self._cells(column, texts.column(column.name).combine_chunks())
                arrays.append(values)
                if column.kind != "label":  # those are explained below
                    wrong = found | wrong
            rows = pa.table(arrays, names=[column.name for column in columns])
        for i, column in enumerate(columns):
            if column.kind == "label" and rows.column(i).null_count:
                values, found = self._labels(column, rows.column(i).combine_chunks(), text)
                rows, wrong = rows.set_column(i, column.name, values), found | wrong
        if len(rows) + len(unread) != expected:
            raise BadInput(
                f"{where}: found {len(rows) + len(unread)} rows, expected {expected}; are quotes or line ends mixed up?"
            )
        if not unread:
            return rows, wrong
        there = np.setdiff1d(np.arange(expected), list(unread))
        places = np.full(expected, -1)
        places[there] = np.arange(len(there))
        gaps = rows.take(pa.array(places, mask=places < 0))  # a row of missing values for each that cannot be read
        return gaps, {int(there[place]): what for place, what in wrong.items()} | unread

    def _cells(self, column: Column, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Cells as what the column is, one by one."""
        if pa.types.is_string(column.type):
            return cast(column, values, column.type)
        clean = values
        if self.decimal_point != "." and is_number(column.type):
            clean = pc.replace_substring(values, self.decimal_point.encode(), b".")
        found, bad = cast(column, clean, column.type)
        for place in list(bad):
            text = values[place].as_py().strip()
            if text.decode(errors="replace") in MISSING:  # with blanks around it
                del bad[place]
        return found, bad

    def _labels(self, column: Column, values: pa.Array, text: bytes) -> tuple[pa.Array, dict[int, str]]:
        """Labels where some seem to be missing: NA is one where labels are text, and is named where they are not."""
        raw = self._parse(text, [column.name], {column.name: pa.binary()}, {}, missing=[]).column(0).to_pylist()
        if pa.types.is_string(column.type):
            text_column = replace(column, kind="category")  # for the sentence about bytes that are no text
            return cast(text_column, pa.array([value or None for value in raw], pa.binary()), pa.string())
        found: list[Hashable] = values.to_pylist()
        bad: dict[int, str] = {}
        for i in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist():
            what = raw[i].decode(errors="replace").strip()
            if pa.types.is_integer(column.type) and re.match(WHOLE, what.removesuffix(".0")):
                found[i] = int(what.removesuffix(".0"))
            elif what:
                bad[i] = (
                    f"column {column.name!r} is {shown(what)}, expected {column.expected} like the first labels; "
                    f"kinds={{{column.name!r}: 'category'}} reads labels as text"
                )
        return pa.array(found, column.type), bad

    def _parse(
        self,
        text: bytes,
        names: list[str],
        types: dict[str, pa.DataType] | None,
        unread: dict[int, str],
        missing: list[str] = MISSING,
    ) -> pa.Table:
        return pacsv.read_csv(
            pa.BufferReader(text),
            pacsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self.names),
            self._parsing(unread),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=names,
                null_values=missing,
                strings_can_be_null=True,
                decimal_point=self.decimal_point,
            ),
        )

    def _parsing(self, unread: dict[int, str] | None) -> pacsv.ParseOptions:
        def wrong_length(row: pacsv.InvalidRow) -> str:
            if unread is not None:
                unread[row.number - 1] = f"has {row.actual_columns} fields, expected {row.expected_columns}"
            return "skip"

        return pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char='"' if self.quotes else False,
            newlines_in_values=self.quotes,
            invalid_row_handler=wrong_length,
        )
