"""Rows by the names of their fields, as a live learner gets them: dicts, rows of data frames, data frames."""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput, short
from prequential.streams.formats.csv_rows import CsvRows
from prequential.streams.formats.encoding import Column, can_be, cast, is_number, shown, whole
from prequential.streams.formats.table import UNNAMED, without_views

AS_CSV = CsvRows("text", ",", True, ".")
LARGEST = 2**63 - 1
READ_FROM_TEXT = ("number", "flag", "time", "clock")  # kinds whose values may be written as text


class RawRows:
    """Rows with named fields, read column by column.

    Parameters
    ----------
    rows
        A list of dicts, or an Arrow table.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] | pa.Table) -> None:
        self._table = rows if isinstance(rows, pa.Table) else None
        self._dicts = [] if isinstance(rows, pa.Table) else rows
        self.names: list[str] = (
            [name for name in rows.schema.names if not UNNAMED.match(name)]
            if isinstance(rows, pa.Table)
            else list(dict.fromkeys(name for row in rows for name in row))
        )
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def single(self) -> Mapping[str, Any] | None:
        """The one dict that it is of; None where it is of something else."""
        return self._dicts[0] if self._count == 1 and self._table is None else None

    def values(self, name: str) -> list[Any]:
        """The values of a field as they came, None where they are missing."""
        if self._table is not None:
            return [None if is_missing(value) else value for value in self._table.column(name).to_pylist()]
        return [None if is_missing(value := row.get(name)) else plain(value) for row in self._dicts]

    def read(self, column: Column, csv: CsvRows, marks: Sequence[str] = ()) -> tuple[pa.Array, dict[int, str]]:
        """A field as `encoding.fill` takes it, and the rows whose value cannot be read and why.

        `csv` reads text where something else is expected; `marks` are texts that stand for missing ones.
        """
        if column.name not in self.names:
            return pa.nulls(len(self), column.type), {}
        if self._table is None:
            return read_values(column, self.values(column.name), csv, marks)
        values = whole(self._table.column(column.name))
        if not _is_string(values.type):
            return values, {}
        if column.kind in READ_FROM_TEXT:
            return csv.cells(column, values)
        if marks:
            values = pc.if_else(pc.is_in(values, pa.array(marks, values.type)), pa.scalar(None, values.type), values)
        return values, {}

    def sample(self, name: str) -> pa.ChunkedArray:
        """The values of a field in whatever type holds them all; text where no other does."""
        if self._table is not None:
            return self._table.column(name)
        values = self.values(name)
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) <= 1 or kinds <= {int, float, bool}:  # Arrow crashes at some mixtures
            with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
                return pa.chunked_array([pa.array(values)])
        texts = [None if value is None else text_of(value) for value in values]
        texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts]
        return pa.chunked_array([pa.array(texts, pa.string())])

    @property
    def is_text(self) -> bool:
        """Whether all there is in it is text, as in rows that csv.DictReader gives."""
        if self._table is not None or not self.names:
            return False
        return all(value is None or isinstance(value, str) for name in self.names for value in self.values(name))


def as_rows(xs: Any, *, one: bool = False, named: bool = False) -> RawRows | None:
    """Rows with named fields; None where xs is something else, such as an array.

    Rows of numbers that are arrays to NumPy (data frames, columns of pandas, named tuples) are taken as rows with names
    only where `named`, or where not all of them are numbers.

    Parameters
    ----------
    xs
        What was given: one row or several.
    one
        Whether it is one row.
    named
        Whether the names are known to matter.

    Examples
    --------
    >>> rows = as_rows({"amount": 3.2, "shop": "a"}, one=True)
    >>> rows.names, len(rows)
    (['amount', 'shop'], 1)
    >>> as_rows([[1.0, 2.0]]) is None
    True
    """
    if isinstance(xs, np.ndarray) or xs is None:
        return None
    if isinstance(xs, RawRows):
        return xs
    if one and (row := _as_dict(xs, named)) is not None:
        return RawRows([row])
    if isinstance(xs, (list, tuple)) and not one:
        if not xs or (first := _as_dict(xs[0], named)) is None:
            return None
        rows = [first, *(_as_dict(row, True) for row in xs[1:])]
        for i, row in enumerate(rows):
            if row is None:
                raise BadInput(f"row {i} of {len(rows)} is {short(xs[i])}, expected a dict like the first one")
        return RawRows([row for row in rows if row is not None])
    if hasattr(xs, "dtypes") and hasattr(xs, "to_dict") and any(str(kind) == "object" for kind in xs.dtypes):
        # values of any kind, at which Arrow may crash
        found = [_as_dict(row, True) or {} for row in xs.to_dict("records")]
        if not named and all(_is_number(value) for row in found for value in row.values()):
            return None
        return RawRows(found) if not one or len(found) == 1 else _refuse_several(len(found))
    table = _as_table(xs)
    if table is None or not (
        named or not all(is_number(kind) or pa.types.is_boolean(kind) for kind in table.schema.types)
    ):
        return None
    return RawRows(table) if not one or len(table) == 1 else _refuse_several(len(table))


def _refuse_several(count: int) -> NoReturn:
    raise BadInput(f"got a data frame of {count} rows, expected one row; the forms that end in _many take several")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, np.number, np.bool_))


def _as_dict(row: Any, named: bool) -> dict[str, Any] | None:
    """One row as a dict; None where it is none."""
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}
    fields: Iterable[Any]
    if isinstance(row, tuple) and hasattr(row, "_fields"):
        fields, values = row._fields, list(row)
        if type(row).__name__ == "Pandas" and row._fields[0] == "Index":  # of DataFrame.itertuples
            fields, values = row._fields[1:], values[1:]
    elif getattr(row, "ndim", None) == 1 and hasattr(row, "to_dict") and hasattr(row, "index"):  # a row of pandas
        fields, values = list(row.index), list(row.array)
        if all(isinstance(name, (int, np.integer)) for name in fields) and not named:
            return None
    else:
        return None
    if not named and all(map(_is_number, values)):
        return None
    return {str(name): value for name, value in zip(fields, values, strict=True)}


def _as_table(xs: Any) -> pa.Table | None:
    """A data frame as an Arrow table; None where it is none."""
    if isinstance(xs, pa.RecordBatch):
        return pa.Table.from_batches([xs])
    is_frame = hasattr(xs, "columns") or hasattr(xs, "schema")
    if not is_frame or not (hasattr(xs, "__arrow_c_stream__") or hasattr(xs, "__dataframe__")):
        return None
    from prequential.streams.formats.frames import FrameTable

    return without_views(FrameTable(xs).rows)


def read_values(
    column: Column, values: list[Any], csv: CsvRows, marks: Sequence[str] = ()
) -> tuple[pa.Array, dict[int, str]]:
    """Values of Python as an Arrow array that `encoding.fill` takes for a column, and those that cannot be read.

    >>> read_values(Column("price", "number", pa.float64(), 1), [1, "2.5", "NA", "cheap"], AS_CSV)[1]
    {3: "column 'price' is 'cheap', expected a number"}
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str} and column.kind in READ_FROM_TEXT:
        return csv.cells(column, pa.array(values, pa.string()))
    if column.kind != "vector" and column.kind not in READ_FROM_TEXT:
        return _read_texts(column, values, kinds, marks)
    try:
        if column.kind == "vector" and str not in kinds:
            values = [None if value is None else list(value) for value in values]
            return pa.array(values, pa.list_(pa.float64())), {}
        if kinds == {int} and max(abs(value) for value in values if value is not None) > LARGEST:
            values = [None if value is None else float(value) for value in values]
        if len(kinds) <= 1:
            found = pa.array(values, None if kinds else column.type)
            if can_be(column.kind, found.type):
                return found, {}
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    if len(values) == 1:
        return pa.nulls(1, column.type), {
            0: f"column {column.name!r} is {shown(values[0])}, expected {column.expected}"
        }
    pieces, bad = [], dict[int, str]()
    for i, value in enumerate(values):  # of several kinds, or some that cannot be read: one by one
        piece, found = read_values(column, [value], csv)
        if not found and column.kind != "vector":
            piece, found = cast(column, piece, column.type)
        pieces.append(piece)
        bad.update(dict.fromkeys([i] if found else [], found.get(0, "")))
    return pa.concat_arrays([piece if column.kind == "vector" else piece.cast(column.type) for piece in pieces]), bad


def _read_texts(
    column: Column, values: list[Any], kinds: set[type], marks: Sequence[str]
) -> tuple[pa.Array, dict[int, str]]:
    bad = {
        i: f"column {column.name!r} is {shown(value)} ({type(value).__name__}), expected text or a single value"
        for i, value in enumerate(values)
        if isinstance(value, (Mapping, list, tuple, set, np.ndarray))
    }
    texts = [None if i in bad or value is None or value in marks else text_of(value) for i, value in enumerate(values)]
    if bytes not in kinds:
        return pa.array(texts, pa.string()), bad
    return pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary()), bad


def text_of(value: Any) -> Any:
    """A single value as the text that is hashed, the same as where a table holds it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # half of a pair of surrogates is no text
    if isinstance(value, (float, np.floating, decimal.Decimal)):
        return pa.scalar(value).cast(pa.string()).as_py()
    return str(value)


def plain(value: Any) -> Any:
    """A value of Python's own for a scalar or an array of NumPy; others as they are."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value.astype("M8[us]" if isinstance(value, np.datetime64) else "m8[us]").item()
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else value


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, pandas' NA or masked."""
    if value is None or isinstance(value, (str, int, bytes)):
        return value is None
    if value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (float, np.floating, np.datetime64, np.timedelta64, decimal.Decimal)):
        return bool(value != value)
    return False


def _is_string(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
