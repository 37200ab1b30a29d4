"""What the pages of a Parquet file say of themselves, checked before Arrow unpacks one.

A page names the size to which it unpacks and the number of its values, and Arrow allocates what it names. The headers
are structs in Thrift's compact protocol, as parquet.thrift has them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prequential.errors import BadInput
from prequential.streams.limits import MEMORY, Limit

MAGIC = b"PAR1"
DICTIONARY = 2  # the kind of a page
TEXT = 6  # the type of columns whose values are bytes of any length
CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
DEPTH = 16  # of structs in a header
LEAST_ROWS = 16


@dataclass
class Page:
    kind: int
    begin: int  # of its content in the file
    packed: int  # bytes in the file
    size: int  # bytes unpacked
    values: int


@dataclass
class Chunk:
    """A column of a row group."""

    type: int
    codec: int
    values: int
    packed: int  # bytes in the file
    begin: int  # of its first page


class Pages:
    """The pages of a Parquet file.

    What lies where is read here and not asked of Arrow, whose objects for it end the process where a file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = memoryview(pa.memory_map(str(path)).read_buffer()).cast("B")
        self._groups: list[list[Chunk]] | None = None

    def rows_at_once(self, file: pq.ParquetFile, group: int, names: Sequence[str], rows: int, limit: Limit) -> int:
        """How many rows of a row group can be read at once, `rows` at most; a sentence where a page claims too much."""
        if self._groups is None:
            self._groups = _groups(self._data)
        chunks = self._groups[group]
        if len(chunks) != len(file.schema.names):
            raise BadInput(
                f"{self.path}, row group {group} has {len(chunks)} columns, expected {len(file.schema.names)}"
            )
        for leaf, chunk in enumerate(chunks):
            place = file.schema.column(leaf).path
            if not any(place == name or place.startswith(f"{name}.") for name in names):
                continue
            where = f"{self.path}, column {place!r}"
            pages = list(_pages(where, self._data, chunk))
            for page in pages:
                limit.check(where, page.size, what="holds a page that unpacks to")
            if file.schema.column(leaf).max_repetition_level > 0:  # one row may hold any number of values
                limit.check(where, 4 * sum(page.values for page in pages if page.kind != DICTIONARY))
            elif chunk.type == TEXT:
                rows = min(rows, _fitting(chunk, self._data, pages, rows))
        return rows


def _groups(data: Any) -> list[list[Chunk]]:
    """The columns of each row group, as the end of the file lists them."""
    (length,) = struct.unpack_from("<I", data, len(data) - 8)
    start = len(data) - 8 - length
    if start < 4 or bytes(data[-4:]) != MAGIC:
        raise ValueError(f"its list of columns is said to take {length} bytes")
    footer, _ = _struct(data, start, len(data) - 8, 0)
    return [[_chunk(column) for column in group.get(1) or []] for group in footer.get(4) or []]


def _chunk(column: dict[int, Any]) -> Chunk:
    about = column.get(3) or {}
    starts = [start for start in (about.get(9, 0), about.get(11, 0)) if start > 0]
    if not starts:
        raise ValueError("a column has no pages")
    return Chunk(about.get(1, -1), about.get(4, 0), about.get(5, 0), about.get(7, 0), min(starts))


def _fitting(column: Chunk, data: Any, pages: Sequence[Page], rows: int) -> int:
    """How many values of text fit in memory, however long the longest are."""
    for page in pages:
        if page.kind == DICTIONARY and page.size * rows > MEMORY:
            rows = min(rows, MEMORY // max(1, _longest(column, data, page)))
    at, window = 0, [(0, 0)]  # where pages end, and the bytes up to there
    for page in pages:
        if page.kind != DICTIONARY:
            at += page.values
            window.append((at, window[-1][1] + page.size))
    first = 0
    for end in range(1, len(window)):
        while window[end - 1][0] - window[first + 1][0] > rows:
            first += 1
        if window[end][1] - window[first][1] > MEMORY:
            return LEAST_ROWS
    return max(LEAST_ROWS if rows >= LEAST_ROWS else 1, rows)


def _longest(column: Chunk, data: Any, page: Page) -> int:
    """The length of the longest text in a dictionary."""
    content = data[page.begin : page.begin + page.packed]
    if codec := CODECS.get(column.codec, "lz4_raw"):
        if codec == "lz4_raw":  # which Arrow unpacks only inside its reader
            return page.size
        content = pa.decompress(pa.py_buffer(content), page.size, codec, asbytes=True)
    longest, at = 0, 0
    for _ in range(page.values):
        if at + 4 > len(content):
            break
        (length,) = struct.unpack_from("<I", content, at)
        longest, at = max(longest, length), at + 4 + length
    return longest


def _pages(where: str, data: Any, column: Chunk) -> Iterator[Page]:
    """The pages of a column of a row group, in order."""
    at, end = column.begin, column.begin + column.packed
    if at < 4 or end > len(data) or column.packed < 0 or column.values < 0:
        raise BadInput(f"{where} is said to take bytes {at} to {end} of a file of {len(data)}")
    values = 0
    while values < column.values and at < end:
        page, at = _header(where, data, at, end)
        if page.kind != DICTIONARY:
            values += page.values
        yield page


def _header(where: str, data: Any, at: int, end: int) -> tuple[Page, int]:
    """A page, and where the next one begins."""
    fields, begin = _struct(data, at, end, 0)
    kind, size, packed = (int(fields.get(number, -1)) for number in (1, 2, 3))
    about: dict[int, Any] = next((fields[number] for number in (5, 7, 8) if isinstance(fields.get(number), dict)), {})
    values = int(about.get(1, 0))
    if min(kind, size, packed, values) < 0 or begin + packed > end:
        raise BadInput(
            f"{where}: the page at byte {at} is said to take {packed} bytes, unpacked {size}, with {values} values; "
            f"{end - begin} bytes are left"
        )
    return Page(kind, begin, packed, size, values), begin + packed


def _struct(data: Any, at: int, end: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number, and where it ends."""
    if depth > DEPTH:
        raise ValueError("a header is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        if at >= end:
            raise ValueError("a header goes beyond its column")
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _whole(data, at, end)
        fields[number], at = _value(data, at, end, head & 15, depth)


def _value(data: Any, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true and false
        return kind == 1, at
    if kind == 3:
        return 0, at + 1
    if kind in (4, 5, 6):
        return _whole(data, at, end)
    if kind == 7:
        return 0, at + 8
    if kind == 8:
        length, at = _varint(data, at, end)
        return None, at + length
    if kind in (9, 10):
        head, at = data[at], at + 1
        count, inner = head >> 4, head & 15
        if count == 15:
            count, at = _varint(data, at, end)
        if count > end - at:
            raise ValueError("a list goes beyond its end")
        members = []
        for _ in range(count):
            if at >= end:
                raise ValueError("a list goes beyond its end")
            member, at = _value(data, at, end, inner, depth + 1) if inner not in (1, 2) else (0, at + 1)
            members.append(member)
        return members, at
    if kind == 12:
        return _struct(data, at, end, depth + 1)
    raise ValueError(f"a header holds a field of the unknown type {kind}")


def _whole(data: Any, at: int, end: int) -> tuple[int, int]:
    number, at = _varint(data, at, end)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if at >= end or shift > 63:
            raise ValueError("a header holds a number that does not end")
        number |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return number, at
        shift += 7
