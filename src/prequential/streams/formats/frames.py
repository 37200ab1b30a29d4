"""Data frames in memory: pandas, polars, Arrow tables, and whatever else speaks the Arrow interface."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput
from prequential.streams.formats.encoding import Column, is_plain_text, shown
from prequential.streams.formats.table import BLOCK_ROWS, Table, without_views


class FrameTable(Table):
    """A data frame, read where it is; neither pandas nor polars is imported."""

    def __init__(self, frame: Any) -> None:
        self.name = f"the {type(frame).__module__.split('.')[0]} data frame"
        if isinstance(frame, pa.Table):
            self.rows = frame
        elif hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__"):
            self.rows = _converted(frame, self.name)
        else:
            raise BadInput(f"got a {type(frame).__name__}, expected a path or a data frame (pandas, polars or Arrow)")
        self._order: np.ndarray | None = None  # which row of the user's frame each row was
        self.schema = self.rows.schema
        total = len(self.rows)
        self.starts = np.minimum(np.arange(-(-total // BLOCK_ROWS) + 1) * BLOCK_ROWS, total)

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        start, stop = int(self.starts[i]), int(self.starts[i + 1])
        return without_views(self.rows.select([column.name for column in columns]).slice(start, stop - start)), {}

    def sorted_by(self, column: str) -> FrameTable | None:
        if is_plain_text(self.rows.schema.field(column).type):
            return None  # dates as text: their zones may differ
        order = pc.sort_indices(self.rows, [(column, "ascending")])  # stable, missing values last
        table = FrameTable(without_views(self.rows).take(order))
        table.name, table._order = self.name, order.to_numpy()
        return table

    def where(self, row: int) -> str:
        return super().where(row if self._order is None else int(self._order[row]))

    def fingerprint(self) -> str:
        """A hash of the values, however the frame holds them in memory."""
        digest = hashlib.sha256()
        for name in self.schema.names:
            digest.update(f"{name}\x1f".encode())
            for i in range(len(self.starts) - 1):
                start, stop = int(self.starts[i]), int(self.starts[i + 1])
                digest.update(_content(self.rows.column(name).slice(start, stop - start)))
        return f"frame {digest.hexdigest()}"


def _converted(frame: Any, name: str) -> pa.Table:
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
        raise BadInput(f"{name}{_what_is_wrong(frame) or f' cannot be read: {error}'}") from None


def _what_is_wrong(frame: Any) -> str:
    """Why a frame cannot be read, where its columns tell: two of one name, or values of several types in one."""
    names = [str(column) for column in getattr(frame, "columns", [])]
    for i, name in enumerate(names):
        if name in names[:i]:
            return f" has two columns called {name!r}; expected different names"
    for column in getattr(frame, "columns", []):
        first = None
        for row, value in enumerate(frame[column]):
            if _is_missing(value):
                continue
            if first is not None and type(value) is not type(first) and not _fit(value, first):
                found, expected = type(value).__name__, type(first).__name__
                place = f", row {row + 1}, column {str(column)!r}"
                return f"{place} is {shown(value)} ({found}), expected {expected} as before"
            first = value if first is None else first
    return ""


def _is_missing(value: Any) -> bool:
    """None, NaN, NaT, or pandas' NA, which refuses to say whether it is equal to itself."""
    return value is None or type(value).__name__ == "NAType" or (not hasattr(value, "__len__") and value != value)


def _fit(value: Any, first: Any) -> bool:
    return isinstance(value, (int, float)) and isinstance(first, (int, float))


def _content(values: pa.ChunkedArray) -> bytes:
    if pa.types.is_temporal(values.type) and values.type.bit_width in (32, 64):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return "\x1f".join(map(repr, values.to_pylist())).encode()
    known = values.is_valid().to_numpy()
    numbers = pc.fill_null(values, pa.scalar(0, values.type)).to_numpy()
    return bytes(known.tobytes() + numbers.tobytes())
