"""The binary format of a journal's log: records with a header, a position and checksums.

A record is a header of 32 bytes and a payload. All numbers are little-endian.

    magic 4s | kind u8 | flags u8 | reserved u16 | tag u32 | position u64 | payload bytes u32 | payload crc32 u32 |
    crc32 of the 28 bytes before u32

The tag is the crc32 of the journal's id, so that records of another journal are noticed. The payload of an example:

    asked_at u64 | bytes of x, label, id, row u32 each | x | label | id | row

x are the numbers in the journal's dtype and shape; the label is JSON text. The id is the one by which a late label came;
row says where the example came from. Both may be empty.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from prequential.storage.files import write_all
from prequential.storage.platforms import pread

MAGIC = b"PQr2"
HEADER = struct.Struct("<4sBBHIQII")
CHECK = struct.Struct("<I")
HEAD = HEADER.size + CHECK.size  # 32 bytes
EXAMPLE_HEAD = struct.Struct("<QIIII")
COUNT = struct.Struct("<Q")

META, EXAMPLE, GAP = 0, 1, 2
SKIPPABLE = 1  # a flag: a reader that does not know this kind may skip the record

MOST = 1 << 31  # positions that one gap may cover
BLOCK = 1 << 20  # bytes read at a time while scanning


class Header(NamedTuple):
    kind: int
    flags: int
    tag: int
    position: int
    length: int  # of the payload
    crc: int  # of the payload

    @property
    def size(self) -> int:
        return HEAD + self.length


class Example(NamedTuple):
    """What is kept of one example."""

    asked_at: int  # how many labels had arrived when it was predicted
    x: memoryview | bytes
    label: bytes
    id: bytes
    row: bytes


class Found(NamedTuple):
    """A piece of a log: a record, or bytes that are none."""

    offset: int
    size: int
    position: int  # of the record; of bytes that are none, the first position that may have been in them
    span: int  # how many positions it covers
    header: Header | None  # None: damaged
    payload: bytes  # of a record; empty where it is damaged
    reason: str = ""  # what is wrong
    torn: bool = False  # whether it is the beginning of a record that ends with the file


def tag_of(identity: str) -> int:
    return zlib.crc32(identity.encode())


def record(kind: int, tag: int, position: int, payload: bytes, flags: int = 0) -> bytes:
    """A whole record."""
    head = HEADER.pack(MAGIC, kind, flags, 0, tag, position, len(payload), zlib.crc32(payload))
    return head + CHECK.pack(zlib.crc32(head)) + payload


def example_payload(example: Example | tuple[int, bytes, bytes, bytes, bytes]) -> bytes:
    asked_at, x, label, name, row = example
    head = EXAMPLE_HEAD.pack(asked_at, len(x), len(label), len(name), len(row))
    return b"".join((head, x, label, name, row))


def gap(tag: int, position: int, count: int) -> bytes:
    """A record that covers examples that are lost."""
    return record(GAP, tag, position, COUNT.pack(count))


def read_header(data: bytes | memoryview, at: int = 0) -> Header | None:
    """The header at a place, if there is a whole one."""
    if len(data) - at < HEAD:
        return None
    magic, kind, flags, _, tag, position, length, crc = HEADER.unpack_from(data, at)
    if magic != MAGIC or CHECK.unpack_from(data, at + HEADER.size)[0] != zlib.crc32(data[at : at + HEADER.size]):
        return None
    return Header(kind, flags, tag, position, length, crc)


def read_example(payload: memoryview | bytes) -> Example | None:
    """What is in an example's payload, if its parts fill it."""
    if len(payload) < EXAMPLE_HEAD.size:
        return None
    asked_at, *sizes = EXAMPLE_HEAD.unpack_from(payload)
    if EXAMPLE_HEAD.size + sum(sizes) != len(payload):
        return None
    parts, start = [], EXAMPLE_HEAD.size
    for size in sizes:
        parts.append(payload[start : start + size])
        start += size
    x, label, name, row = parts
    return Example(asked_at, x, bytes(label), bytes(name), bytes(row))


_FIELDS = np.dtype(
    [("magic", "S4"), ("kind", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("tag", "<u4"), ("position", "<u8"),
     ("length", "<u4"), ("crc", "<u4"), ("check", "<u4"),
     ("asked_at", "<u8"), ("x", "<u4"), ("label", "<u4"), ("id", "<u4"), ("row", "<u4")]
)  # fmt: skip


def read_run(
    data: bytes, offsets: np.ndarray, *, position: int, tag: int, size: int
) -> tuple[np.ndarray, list[bytes]] | None:
    """The x bytes (n, size) and label texts of consecutive examples at these offsets of the data.

    None if anything is wrong; then each is read on its own. Checking all at once takes a fifth of the time.
    """
    ends = np.append(offsets[1:], len(data))
    if offsets[0] != 0 or (ends - offsets < _FIELDS.itemsize + size).any():
        return None
    flat = np.frombuffer(data, np.uint8)
    heads = flat[offsets[:, None] + np.arange(_FIELDS.itemsize)].view(_FIELDS)[:, 0]
    good = (
        (heads["magic"] == MAGIC) & (heads["kind"] == EXAMPLE) & (heads["tag"] == tag)
        & (heads["position"] == position + np.arange(len(offsets), dtype=np.uint64))
        & (heads["length"] == ends - offsets - HEAD) & (heads["x"] == size)
        & (heads["x"].astype(np.int64) + heads["label"] + heads["id"] + heads["row"] + EXAMPLE_HEAD.size == heads["length"])
    )  # fmt: skip
    if not good.all():
        return None
    view, crc32 = memoryview(data), zlib.crc32
    for start, end, crc, check in zip(
        offsets.tolist(), ends.tolist(), heads["crc"].tolist(), heads["check"].tolist(), strict=True
    ):
        if crc32(view[start : start + HEADER.size]) != check or crc32(view[start + HEAD : end]) != crc:
            return None
    x = flat[offsets[:, None] + np.arange(_FIELDS.itemsize, _FIELDS.itemsize + size)]
    starts = (offsets + _FIELDS.itemsize + size).tolist()
    return x, [data[a : a + n] for a, n in zip(starts, heads["label"].tolist(), strict=True)]


def positions_of(header: Header, payload: bytes | memoryview) -> int:
    """How many positions a record covers."""
    if header.kind == EXAMPLE:
        return 1
    if header.kind == GAP and len(payload) >= COUNT.size:
        return min(int(COUNT.unpack_from(payload)[0]), MOST)
    return 0


class Window:
    """A file's bytes up to `end`, read in blocks."""

    def __init__(self, handle: int, end: int, block: int = BLOCK) -> None:
        self.handle, self.end, self.block = handle, end, block
        self._start, self._data = 0, b""

    def get(self, offset: int, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        size = min(size, self.end - offset)
        if size <= 0:
            return b""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            self._start = offset
            self._data = read_at(self.handle, max(size, min(self.block, self.end - offset)), offset)
            at = 0
        return self._data[at : at + size]


def read_at(handle: int, size: int, offset: int) -> bytes:
    """So many bytes from an offset on; fewer where the file ends."""
    parts = []
    while size > 0:
        part = pread(handle, min(size, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def copy_bytes(source: int, target: int, start: int, stop: int) -> None:
    """Appends the bytes start..stop-1 of one file to another."""
    window = Window(source, stop)
    while start < stop:
        block = window.get(start, 1 << 20)
        if not block:
            return
        write_all(target, block)
        start += len(block)


def scan(handle: int, start: int, end: int, *, position: int, tag: int) -> Iterator[Found]:
    """Everything from `start` to `end`, in order, where `position` is expected next; every checksum is verified.

    After bytes that are no record it goes on at the next header that is whole and not before what is expected.
    """
    window = Window(handle, end)
    offset = start
    while offset < end:
        header = _header_at(window, offset, position, tag)
        if header is None:
            following = _next(window, offset + 1, position, tag)
            if following is None:
                yield _tail(window, offset, position, tag)
                return
            at, ahead = following
            yield Found(offset, at - offset, position, ahead.position - position, None, b"", "no record is there")
            offset, position = at, ahead.position
            continue
        if header.position > position:  # records are missing here
            yield Found(offset, 0, position, header.position - position, None, b"", "it is missing")
            position = header.position
        payload = window.get(offset + HEAD, header.length)
        at = offset + header.size
        if len(payload) == header.length and zlib.crc32(payload) == header.crc:
            count = positions_of(header, payload)
            yield Found(offset, header.size, position, count, header, payload)
            offset, position = at, position + count
            continue
        behind = _header_at(window, at, position, tag)
        after = position + (header.kind == EXAMPLE)
        if at != end and behind is None:  # its length says nothing either: bytes are missing, or it is cut off
            resumed = _next(window, offset + HEAD, position, tag)
            if resumed is None:
                yield _tail(window, offset, position, tag)
                return
            at, behind = resumed
        if behind is not None and header.kind != META and behind.kind in (EXAMPLE, GAP):
            after = behind.position
        yield Found(offset, at - offset, position, after - position, None, b"", "its checksum is wrong")
        offset, position = at, after


def _header_at(window: Window, offset: int, position: int, tag: int) -> Header | None:
    header = read_header(window.get(offset, HEAD))
    if header is None or header.tag != tag:
        return None
    # a position far from what is expected is no accident that happens to this log, and not worth an index
    fits = header.kind not in (EXAMPLE, GAP) or position <= header.position <= position + MOST
    return header if fits else None


def _next(window: Window, offset: int, position: int, tag: int) -> tuple[int, Header] | None:
    """The next place with a header of an example or a gap that may follow."""
    while offset < window.end:
        block = window.get(offset, BLOCK)
        at = block.find(MAGIC)
        while at >= 0:
            header = _header_at(window, offset + at, position, tag)
            if header is not None and header.kind in (EXAMPLE, GAP):
                return offset + at, header
            block = window.get(offset, BLOCK)  # looking at the header may have moved the window
            at = block.find(MAGIC, at + 1)
        offset += max(1, len(block) - len(MAGIC) + 1)
    return None


def _tail(window: Window, offset: int, position: int, tag: int) -> Found:
    """The end of a log from which no further record can be read."""
    size = window.end - offset
    head = window.get(offset, HEAD)
    header = read_header(head)
    # the beginning of a record, as a write that was cut off leaves it
    torn = (
        MAGIC.startswith(head[: len(MAGIC)])
        if header is None and size < HEAD
        else header is not None and header.tag == tag and header.size > size
    )
    reason = "it was cut off" if torn else "no record is there"
    return Found(offset, size, position, 0, None, b"", reason, torn)
