"""Rows of text as they come, from a file or a pipe: CSV with a line of column names, or JSON lines."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from prequential.errors import BadInput, one_line, short
from prequential.streams.formats.csv_rows import CsvRows

READ = 1 << 16  # bytes that are read at once
LONGEST = 16 << 20  # bytes that a row may take
BATCH = 64  # rows that are given out at once, at most


class Row(NamedTuple):
    """One row and its number; the first is row 1."""

    number: int
    fields: dict[str, Any]  # of a CSV: texts, None where a field is empty


class RowInput:
    """The rows of a CSV or of JSON lines, in batches of those that are there: a pipe that pauses delays no row.

    Which of the two it is, and what separates the fields of a CSV, is seen from the first line. Text is UTF-8. Memory
    holds a batch and the beginning of a row.

    Parameters
    ----------
    handle
        The file descriptor to read from.
    name
        What it is called in messages.
    delimiter
        What separates fields; by default the one of `, ; tab |` that is most frequent in the first line.

    Examples
    --------
    >>> reader, writer = os.pipe()
    >>> _ = os.write(writer, b"price,shop\\n3.5,a\\n,b\\n")
    >>> os.close(writer)
    >>> [row.fields for batch in RowInput(reader, "pipe") for row in batch]
    [{'price': '3.5', 'shop': 'a'}, {'price': None, 'shop': 'b'}]
    """

    def __init__(self, handle: int, name: str, *, delimiter: str | None = None) -> None:
        self.handle, self.name = handle, name
        self.names: list[str] | None = None  # of the columns of a CSV, once the first line was read
        self.is_json = False
        self._csv = CsvRows(name, delimiter, True, "." if delimiter != "." else ",")

    def __iter__(self) -> Iterator[list[Row]]:
        number, data, first, ended = 1, b"", True, False
        while not ended:
            fresh = os.read(self.handle, READ)  # what is there; nothing only at the end
            ended, data = not fresh, data + fresh
            if first:
                if b"\n" not in data and not ended:
                    self._check_length(data, 1)
                    continue
                data, first = self._begin(data.removeprefix(codecs.BOM_UTF8)), False
            end = self._end_of_rows(data, ended)
            found = iter(self._parse(data[:end], number))
            data = data[end:]
            while batch := list(islice(found, BATCH)):
                number = batch[-1].number + 1
                yield batch
            self._check_length(data, number)

    def has_more(self, seconds: float) -> bool:
        """Whether more can be read within so much time, or the end is there."""
        return bool(select.select([self.handle], [], [], seconds)[0])

    def _begin(self, data: bytes) -> bytes:
        """Finds out what it is; the bytes behind the line of names."""
        self.is_json = data.lstrip()[:1] == b"{"
        if self.is_json or not data.strip():
            return data
        line = data.split(b"\n", 1)[0]
        rows = self._csv
        rows.delimiter = rows.delimiter or max(",;\t|", key=lambda mark: line.count(mark.encode()))
        ends = rows.ends(data, True)
        names = [name.strip() for name in next(csv.reader([self._text(data[: int(ends[0])], 0)], **self._options))]
        names = [name or f"column {i + 1}" for i, name in enumerate(names)]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise BadInput(f"{self.name} has two columns called {short(twice)}; expected different names")
        self.names = names
        return data[int(ends[0]) :]

    def _end_of_rows(self, data: bytes, last: bool) -> int:
        if self.is_json:
            return len(data) if last else data.rfind(b"\n") + 1
        if self.names is None or not data:
            return len(data)
        ends = self._csv.ends(data, last)
        return int(ends[-1]) if len(ends) else 0

    def _parse(self, data: bytes, number: int) -> Iterator[Row]:
        if self.is_json:
            for line in data.split(b"\n"):
                if line.strip():
                    yield Row(number, self._object(line, number))
                    number += 1
            return
        if self.names is None:
            return
        try:
            for fields in csv.reader(io.StringIO(self._text(data, number), newline=""), **self._options):
                if fields:
                    yield Row(number, self._named(fields, number))
                    number += 1
        except csv.Error as error:
            raise BadInput(f"{self.name}, row {number} cannot be read: {one_line(error, 80)}") from None

    @property
    def _options(self) -> dict[str, Any]:
        return {"delimiter": self._csv.delimiter, "strict": True}

    def _named(self, fields: list[str], number: int) -> dict[str, Any]:
        names = self.names or []
        if len(fields) != len(names):
            raise BadInput(f"{self.name}, row {number} has {len(fields)} fields, expected {len(names)}")
        return {name: field or None for name, field in zip(names, fields, strict=True)}

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self.name}, row {number} is no JSON: {one_line(error, 80)}") from None
        if not isinstance(found, dict):
            raise BadInput(f"{self.name}, row {number} is {short(found)}, expected a JSON object with names")
        return found

    def _text(self, data: bytes, number: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            around = data[max(0, error.start - 10) : error.end + 10]
            row = number + data[: error.start].count(b"\n")
            raise BadInput(f"{self.name}, about row {row} holds {around!r}, which is not UTF-8 text") from None

    def _check_length(self, data: bytes, number: int) -> None:
        if len(data) > LONGEST:
            raise BadInput(
                f"{self.name}, row {number} does not end within {len(data)} bytes, expected at most {LONGEST}; is a "
                "quote not closed?"
            )


@contextmanager
def open_rows(path: str, *, delimiter: str | None = None) -> Iterator[RowInput]:
    """The rows of a file, or of standard input for -."""
    if path == "-":
        yield RowInput(sys.stdin.fileno(), "standard input", delimiter=delimiter)
        return
    place = Path(path)
    if not place.is_file():
        raise BadInput(
            f"{place} {'is no file' if place.exists() else 'does not exist'}; expected CSV, JSON lines, or -"
        )
    handle = os.open(place, os.O_RDONLY)
    try:
        yield RowInput(handle, place.name, delimiter=delimiter)
    finally:
        os.close(handle)
