"""The text of a CSV as rows: where they end, what types their columns have, and their values."""

from __future__ import annotations

import datetime
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.encoding import NUMBER, Column, cast, is_number, shown

MISSING = [*pacsv.ConvertOptions().null_values, "?"]
WHOLE = r"^\s*-?(0|[1-9]\d{0,17})\s*$"  # the label 007 is not 7, and stays text
INTEGER = r"^[-+]?\d{1,19}$"
EXACT = r"^\s*-?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*$"
FLAG = r"^\s*(?i:true|false)\s*$"
DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$"
PIECE = 2**20  # bytes looked at at once
NO_ASCII = bytes(range(128)) + b"?" * 128
HOURS = re.compile("%[HIMSTRcXrs]")  # of a format of dates: whether it has a time of day
MOSTLY = 0.9  # a column is numbers if so many of its first values are; the others are bad rows


class CsvRows:
    """How pieces of a CSV are read; each piece holds whole rows."""

    def __init__(
        self, name: str, delimiter: str | None, quotes: bool, decimal_point: str, dates: str | None = None
    ) -> None:
        self.name = name  # for messages
        delimiter = "\t" if delimiter == r"\t" else delimiter
        for option, mark in (("delimiter", delimiter), ("decimal_point", decimal_point)):
            if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in '"\r\n'):
                raise BadSetting(
                    f"{option} ({mark!r}) must be one ASCII character, such as {';' if mark == delimiter else ','!r}"
                )
        if delimiter == decimal_point:
            raise BadSetting(f"delimiter and decimal_point are both {delimiter!r}, expected different characters")
        self.delimiter, self.quotes, self.decimal_point = delimiter or "", quotes, decimal_point
        self.dates = dates  # how dates are written that are not ISO 8601
        if dates is not None:
            _check_dates(dates)
        self.names: list[str] = []  # of the columns

    def ends(self, data: bytes, last: bool) -> np.ndarray:
        """The positions after each row of data that begins with a row; `last`: the end of data ends a row too."""
        codes = np.frombuffer(data, np.uint8)
        ends = self._line_ends(codes, self.quotes and b'"' in data)
        if last and (len(ends) == 0 or ends[-1] < len(data)):
            ends = np.append(ends, np.int32(len(data)))
        if len(ends) == 0:
            return ends
        lengths = np.diff(ends, prepend=np.int32(0))
        empty = (lengths == 1) & (codes[ends - 1] == 10)
        two = np.flatnonzero(lengths == 2)
        empty[two] = (codes[ends[two] - 2] == 13) & (codes[ends[two] - 1] == 10)
        if not empty.any():
            return ends
        # an empty line is no row: it belongs to the row after it, and at the end to nobody
        kept: np.ndarray = ends[~empty]
        return kept

    def _line_ends(self, codes: np.ndarray, quoted: bool) -> np.ndarray:
        """The positions after line ends that no quoted field holds: an even number of quotes stands before them."""
        found, before = [np.empty(0, np.int32)], 0
        for start in range(0, len(codes), PIECE):  # in pieces: a file of nothing but line ends or quotes has many
            part = codes[start : start + PIECE]
            ends = np.flatnonzero(part == 10)
            quotes = np.flatnonzero(part == 34) if quoted else ends[:0]
            if len(quotes):
                self._check_quotes(codes, start + quotes[before % 2 :: 2])
                ends = ends[(before + np.searchsorted(quotes, ends)) % 2 == 0]
            elif before % 2:
                ends = ends[:0]
            before += len(quotes)
            found.append((start + 1 + ends).astype(np.int32))
        return np.concatenate(found)

    def _check_quotes(self, codes: np.ndarray, opening: np.ndarray) -> None:
        allowed = np.zeros(256, bool)
        allowed[[10, 13, 34, ord(self.delimiter)]] = True
        wrong = opening[(opening > 0) & ~allowed[codes[opening - 1]]]
        if len(wrong):
            around = bytes(codes[max(0, wrong[0] - 30) : wrong[0] + 10])
            raise BadInput(
                f"{self.name}: a quote stands inside an unquoted field near {around!r}, so it cannot be told "
                "where rows end; "
                "double it inside a quoted field, or read the file with quotes=False"
            )

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
        for chunk in lines.column("line").chunks:  # the values of a chunk are contiguous
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
            pacsv.ReadOptions(autogenerate_column_names=True, block_size=len(line) + 1),
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
        fields, written_in_hex = [], b"0x" in text.lower()
        for name, values in zip(self.names, rows.columns, strict=True):
            if name == label:
                found = self._label_type(text, name)
            elif pa.types.is_integer(values.type) and (self.dates or written_in_hex):
                found = self._text_type(self._parse(text, [name], {name: pa.string()}, {}).column(name))
            elif pa.types.is_string(values.type) and values.null_count < len(values):
                found = self._text_type(values)
            elif pa.types.is_binary(values.type):  # some cell is not UTF-8, and need not decide for the others
                texts = [value and value.decode(errors="replace") for value in values.to_pylist()]
                found = self._text_type(pa.chunked_array([pa.array(texts, pa.string())]))
                found = values.type if pa.types.is_string(found) else found
            else:
                found = values.type
            fields.append((name, found))
        return pa.schema(fields)

    def _text_type(self, values: pa.ChunkedArray) -> pa.DataType:
        trimmed = pc.utf8_trim_whitespace(values.drop_null())
        known = trimmed.filter(pc.invert(pc.is_in(trimmed, pa.array(MISSING))))
        if len(known) == 0:  # nothing but blanks, which only text can hold
            return pa.string()
        if self.dates and 1 - self._written(known).null_count / len(known) >= MOSTLY:
            return pa.timestamp("us") if HOURS.search(self.dates) else pa.date32()
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

    def _written(self, texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Times that are written as `dates` says; all else is missing."""
        times = pc.strptime(texts, format=self.dates, unit="us", error_is_null=True)
        return times.cast(pa.int64()).cast(pa.timestamp("us"))  # a zone is taken in already

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
            if column.kind != "label":
                continue
            values, found = rows.column(i).combine_chunks(), {}
            if values.null_count:
                values, found = self._labels(column, values, text)
            if pa.types.is_string(column.type):  # "1, a" has the label a, as a header "x, y" has the column y
                values = pc.utf8_trim_whitespace(values)
                values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
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

    def cells(self, column: Column, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Texts as what the column is, each as if it stood in the file, and those that cannot be read and why."""
        return self._cells(column, values.cast(pa.binary()))

    def _cells(self, column: Column, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Cells as what the column is, one by one."""
        if pa.types.is_string(column.type):
            return cast(column, values, column.type)
        if self.dates and (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
            return self._times(column, values)
        clean = values
        if self.decimal_point != "." and is_number(column.type):
            clean = pc.replace_substring(values, self.decimal_point.encode(), b".")
        found, bad = cast(column, clean, column.type)
        return found, self._without_missing(values, bad)

    def _times(self, column: Column, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Cells as times: as the user says they are written, or ISO 8601."""
        decoded = pa.array(
            [value and value.decode(errors="replace").strip() for value in values.to_pylist()], pa.string()
        )
        written = self._written(decoded)
        others, bad = cast(column, pc.if_else(written.is_valid(), pa.scalar(None, pa.string()), decoded), column.type)
        bad = {i: f"{what} or as in {self.dates!r}" for i, what in self._without_missing(values, bad).items()}
        if pa.types.is_timestamp(column.type):
            written = written.cast(pa.int64())
        return pc.coalesce(written.cast(column.type), others), bad

    def _without_missing(self, values: pa.Array, bad: dict[int, str]) -> dict[int, str]:
        for place in list(bad):
            text = values[place].as_py().strip()
            if text.decode(errors="replace") in MISSING:  # with blanks around it
                del bad[place]
        return bad

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
        if not _is_utf8(text):
            text = self._readable(text, unread)
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
                timestamp_parsers=[self.dates, pacsv.ISO8601] if self.dates and types else None,
            ),
        )

    def _readable(self, text: bytes, unread: dict[int, str]) -> bytes:
        """A piece that is not UTF-8 without the rows of a wrong length: Arrow cannot tell of such rows."""
        plain = text.translate(NO_ASCII)
        self._parse(plain, self.names[:1], {self.names[0]: pa.binary()}, unread)
        if not unread:
            return text
        lines = self.lines(text)
        kept = lines.take(pa.array(np.setdiff1d(np.arange(len(lines)), list(unread)), pa.int64()))
        return self.text(kept) or plain

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


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


def _check_dates(dates: str) -> None:
    day = datetime.datetime(2023, 11, 22, 13, 14, 15, tzinfo=datetime.UTC)
    try:
        text = day.strftime(dates)
        # first without Arrow, which crashes on an empty format
        good = datetime.datetime.strptime(text, dates).year == day.year
        good = good and pc.strptime(text, format=dates, unit="us", error_is_null=True).is_valid
    except (ValueError, TypeError, pa.ArrowException):
        good = False
    if not good:
        raise BadSetting(f"dates ({dates!r}) must be a format that has a year, such as '%d.%m.%Y' or '%m/%d/%Y %H:%M'")


# Text that is hashed, but looks as if something else was meant.

THOUSANDS = r"^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$"
COMMAS = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
PERCENT = r"^[-+]?\d+([.,]\d+)?\s*%$"
DAY = re.compile(r"(\d{1,2})([./-])(\d{1,2})([./-])(\d{4}|\d{2})( \d{1,2}:\d{2}(:\d{2})?)?")


def looks_like(values: pa.ChunkedArray) -> tuple[str, str]:
    """What a column of text seems to hold, and what to say to have it read; both empty where it is just text.

    >>> looks_like(pa.chunked_array([["3,14", "2,7"]]))
    ('decimal commas', "say decimal_point=','")
    >>> looks_like(pa.chunked_array([["31.1.2024", "1.2.2024"]]))
    ('dates', "say dates='%d.%m.%Y'")
    """
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return "", ""
    texts = pc.utf8_trim_whitespace(values.drop_null())
    if len(texts) == 0:
        return "", ""
    for pattern, what, remedy in (
        (THOUSANDS, "numbers with commas between thousands", "write them without"),
        (COMMAS, "decimal commas", "say decimal_point=','"),
        (PERCENT, "percentages", "write them without %"),
    ):
        if pc.mean(pc.match_substring_regex(texts, pattern).cast(pa.float64())).as_py() >= MOSTLY:
            return what, remedy
    days = [match for match in map(DAY.fullmatch, texts.to_pylist()) if match]
    if len(days) < MOSTLY * len(texts):
        return "", ""
    first = days[0]
    year = "%Y" if len(first[5]) == 4 else "%y"
    clock = "" if first[6] is None else " %H:%M:%S" if first[7] else " %H:%M"
    day_first = f"'%d{first[2]}%m{first[4]}{year}{clock}'"
    month_first = f"'%m{first[2]}%d{first[4]}{year}{clock}'"
    if any(int(day[1]) > 12 for day in days) or first[2] == ".":
        return "dates", f"say dates={day_first}"
    if any(int(day[3]) > 12 for day in days):
        return "dates", f"say dates={month_first}"
    return "dates", f"say dates={day_first} or dates={month_first}"
