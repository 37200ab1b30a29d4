"""What an Arrow file says of its batches, read and checked before Arrow allocates or reads anything of it.

Arrow's reader verifies that these descriptions are well formed, but believes what they say: how many rows a batch has,
where its buffers lie, and to what size they unpack. The layouts are those of Arrow's Message.fbs and File.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prequential.errors import BadInput

MAGIC = b"ARROW1"
DICTIONARY, BATCH = 2, 3  # kinds of messages
CONTINUED = 0xFFFFFFFF  # stands before the length of a message since Arrow 0.15
BUFFERS = 2**20  # how many a batch may have
MESSAGES = 2**24  # how many batches a file may have


@dataclass
class About:
    """What the description of one message says."""

    kind: int
    offset: int  # of the message in the file
    end: int  # where the next one begins
    rows: int = 0
    size: int = 0  # bytes of all buffers, unpacked
    packed: bool = False


class _Table:
    """A table of a flatbuffer: fields by number, each with a default where it is left out."""

    def __init__(self, data: Any, at: int) -> None:
        self.data, self.at = data, at
        self._fields = at - _number("<i", data, at)
        self._count = (_number("<H", data, self._fields) - 4) // 2

    def place(self, field: int) -> int:
        """Where a field is; 0 where it is left out."""
        offset = _number("<H", self.data, self._fields + 4 + 2 * field) if field < self._count else 0
        return self.at + offset if offset else 0

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self.place(field)
        return _number(form, self.data, place) if place else default

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        return _Table(self.data, place + _number("<I", self.data, place)) if place else None

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        """The members of a vector of structs."""
        place = self.place(field)
        if not place:
            return
        start = place + _number("<I", self.data, place)
        count, size = _number("<I", self.data, start), struct.calcsize(form)
        if start + 4 + count * size > len(self.data):
            raise ValueError(f"a list of {count} entries goes beyond its description")
        yield from struct.iter_unpack(form, bytes(self.data[start + 4 : start + 4 + count * size]))


def _number(form: str, data: Any, at: int) -> int:
    if at < 0:
        raise ValueError(f"a description points to byte {at}")
    value: int = struct.unpack_from(form, data, at)[0]
    return value


def batches_of_file(path: Path, data: Any) -> tuple[list[About], list[About]]:
    """The batches and the dictionaries of a file in Arrow's file format, which lists them at its end."""
    size = len(data)
    if size < 2 * len(MAGIC) + 12 or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise BadInput(f"{path} does not end as an Arrow file does; it may be cut off")
    length = _number("<i", data, size - len(MAGIC) - 4)
    start = size - len(MAGIC) - 4 - length
    if length <= 0 or start < len(MAGIC):
        raise BadInput(f"{path} has {size} bytes, but its list of batches is said to take {length}")
    footer = data[start : size - len(MAGIC) - 4]
    listed = _Table(footer, _number("<I", footer, 0))
    found: tuple[list[About], list[About]] = ([], [])
    for kind, field, into in ((BATCH, 3, found[0]), (DICTIONARY, 2, found[1])):
        for offset, metadata, body in listed.structs(field, "<qi4xq"):
            if min(offset, metadata, body) < 0 or offset + metadata + body > start:
                raise BadInput(
                    f"{path}: batch {len(into)} is said to take bytes {offset} to {offset + metadata + body}, "
                    f"but the batches end at {start}"
                )
            about = message(path, data, offset, start)
            if about is None or about.kind != kind:
                raise BadInput(f"{path}: there is no batch at byte {offset}, where one is listed")
            into.append(about)
            if len(into) > MESSAGES:
                raise BadInput(f"{path} has more than {MESSAGES} batches")
    return found


def messages_of_stream(path: Path, data: Any) -> list[About]:
    """All messages of a file in Arrow's stream format, in order."""
    found: list[About] = []
    at = 0
    while (about := message(path, data, at, len(data))) is not None:
        found.append(about)
        at = about.end
        if len(found) > MESSAGES:
            raise BadInput(f"{path} has more than {MESSAGES} batches")
    return found


def message(path: Path, data: Any, offset: int, end: int) -> About | None:
    """The message at a byte of a file; None where the last one was before it."""
    if offset + 4 > end:
        return None
    start, length = offset + 4, _number("<I", data, offset)
    if length == CONTINUED:
        if offset + 8 > end:
            return None
        start, length = offset + 8, _number("<I", data, offset + 4)
    if length == 0:
        return None
    if start + length > end:
        raise BadInput(f"{path}: the batch at byte {offset} is described by {length} bytes, but {end - start} are left")
    about = data[start : start + length]
    head = _Table(about, _number("<I", about, 0))
    kind, body = head.number(1, "<B"), head.number(3, "<q")
    begin = start + length
    if body < 0 or begin + body > end:
        raise BadInput(f"{path}: the batch at byte {offset} is said to have {body} bytes, but {end - begin} are left")
    found = About(kind, offset, begin + body)
    batch = head.table(2) if kind in (DICTIONARY, BATCH) else None
    if kind == DICTIONARY and batch is not None:
        batch = batch.table(1)
    if batch is not None:
        _check(path, data, begin, body, batch, found)
    return found


def _check(path: Path, data: Any, begin: int, body: int, batch: _Table, found: About) -> None:
    """The rows of a batch, the places of its buffers, and what they unpack to."""
    where = f"{path}: the batch at byte {found.offset}"
    found.rows, found.packed = batch.number(0, "<q"), batch.place(3) != 0
    if found.rows < 0:
        raise BadInput(f"{where} is said to have {found.rows} rows")
    for count, (offset, length) in enumerate(batch.structs(2, "<qq")):
        if min(offset, length) < 0 or offset + length > body:
            raise BadInput(f"{where} has a buffer from {offset} to {offset + length}, but only {body} bytes")
        if count >= BUFFERS:
            raise BadInput(f"{where} has more than {BUFFERS} buffers")
        unpacked = length
        if found.packed and length:
            unpacked = _number("<q", data, begin + offset) if length >= 8 else -2
            if unpacked < -1:
                raise BadInput(f"{where} has a packed buffer that is said to unpack to {unpacked} bytes")
            unpacked = length - 8 if unpacked == -1 else unpacked  # it was not worth packing
        found.size += unpacked
    # a value takes a bit or more; a column that is missing altogether takes nothing, but hardly all columns do
    if found.rows > 8 * max(1, found.size):
        raise BadInput(f"{where} is said to have {found.rows} rows in {found.size} bytes")
