"""The log of what a live learner was asked: events since its saves, in files beside the journal.

A file is a sequence of records like those of the journal (`log_records`), of the kind EVENT. A payload is the length of
a JSON text (4 bytes), the text, and the bytes of the arrays in it, one behind the other. With every save a new file is
begun; those that no save needs any more are removed. Where nobody saves, a file that has grown is replaced by one that
begins with everything that is still needed.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.storage.files import make_directory, new_file, opened, storage, sync_directory, write_all
from prequential.streams.journal.log import READ, WRITE, Durability, add_note
from prequential.streams.journal.log_records import HEAD, MAGIC, Window, read_header, record, tag_of

EVENT = 3
LENGTH = struct.Struct("<I")
NAME = re.compile(r"(\d{12})\.bin")
LARGEST = 4 << 20  # bytes that a file may grow to before it is looked at whether it can be made shorter
KINDS = "fiub"  # of arrays

Event = dict[str, Any]


class AskedLog:
    """Events in files with numbers; the newest is written to.

    Parameters
    ----------
    directory
        Where the files are; made with the first event.
    identity
        Of the home: a record of another one is not taken.
    durability
        After how many events the file is synced: a number, "sync" for each, "save" for only by `begin_file`.
    notes
        Where sentences on what is damaged go.
    """

    def __init__(self, directory: Path, identity: str, durability: Durability, notes: list[str]) -> None:
        self.directory, self.durability = directory, durability
        self.number = max(self._numbers(), default=0)  # of the file that is written to; 0: there is none
        self._tag, self._notes = tag_of(identity), notes
        self._end = 0  # of that file, in bytes; it is found out when it is read
        self._unsynced = 0
        self._checked = LARGEST  # bytes at which the length is looked at next

    def read(self, since: int) -> Iterator[Event]:
        """The events from a file on, the oldest first. What a crash has left at the end is cut off."""
        numbers = self._numbers()
        if since > max(numbers, default=0):
            add_note(self._notes, f"{self._path(since)} is missing, and what the learner was asked since its save")
        for number in numbers:
            if number < since:
                continue
            path = self._path(number)
            with storage(path), opened(path, READ) as handle:
                size = os.fstat(handle).st_size
                end = 0
                for end, event in self._events(handle, size, path):  # noqa: B007 (the last one counts)
                    if event is not None:
                        yield event
            if end < size:
                with storage(path), opened(path, WRITE) as handle:
                    os.ftruncate(handle, end)
            if number == self.number:
                self._end = end

    def _events(self, handle: int, size: int, path: Path) -> Iterator[tuple[int, Event | None]]:
        """Where each event ends, and the event."""
        window, offset = Window(handle, size), 0
        while offset + HEAD <= size:
            header = read_header(window.get(offset, HEAD))
            if header is not None and header.tag == self._tag and offset + header.size <= size:
                payload = window.get(offset + HEAD, header.length)
                if zlib.crc32(payload) == header.crc:
                    offset += header.size
                    yield offset, decode_event(payload) if header.kind == EVENT else None
                    continue
            after = self._next(window, offset + 1, size)
            torn = (
                header is not None and header.tag == self._tag and offset + header.size > size
            )  # as a crash leaves it
            if after is None and torn:
                return
            after = size if after is None else after
            add_note(self._notes, f"{after - offset} bytes of {path} are no event and were left out")
            offset = after
            yield offset, None

    def _next(self, window: Window, offset: int, size: int) -> int | None:
        """Where the next whole record begins."""
        while offset + HEAD <= size:
            block = window.get(offset, 1 << 16)
            at = block.find(MAGIC)
            if at < 0:
                offset += max(1, len(block) - len(MAGIC) + 1)
                continue
            header = read_header(window.get(offset + at, HEAD))
            if header is not None and header.tag == self._tag and offset + at + header.size <= size:
                return offset + at
            offset += at + 1
        return None

    def append(self, events: list[Event], whole: Callable[[], list[Event]]) -> None:
        """Adds events, all of them or none. `whole` says everything that is needed before them, to make it shorter."""
        data = b"".join(record(EVENT, self._tag, 0, encode_event(event)) for event in events)
        with storage(self.directory):
            if self._end > self._checked:
                self._shorten(whole())
            if not self.number:
                self.begin_file()
            with opened(self._path(self.number), WRITE) as handle:
                size = os.fstat(handle).st_size
                if size < self._end:
                    raise BadInput(f"{self._path(self.number)} has {size} bytes, expected {self._end}")
                if size > self._end:  # of a write that failed
                    os.ftruncate(handle, self._end)
                write_all(handle, data, self._end)
                unsynced = self._unsynced + len(events)
                due = self.durability == "sync" or (self.durability != "save" and unsynced >= int(self.durability))
                if due:
                    os.fsync(handle)
                self._unsynced = 0 if due else unsynced
            self._end += len(data)

    def begin_file(self, first: bytes = b"") -> int:
        """Begins another file, after the one so far was synced; its number."""
        with storage(self.directory):
            make_directory(self.directory)
            self.sync()
            with new_file(self._path(self.number + 1)) as handle:
                write_all(handle, first)
            self.number, self._end, self._unsynced = self.number + 1, len(first), 0
            self._checked = max(LARGEST, 4 * len(first))
        return self.number

    def sync(self) -> None:
        """Makes everything so far survive a power cut."""
        if self.number and self._unsynced:
            with storage(self.directory), opened(self._path(self.number), WRITE) as handle:
                os.fsync(handle)
            self._unsynced = 0

    def forget(self, before: int) -> None:
        """Removes the files before this one, which nobody needs any more."""
        with storage(self.directory):
            old = [number for number in self._numbers() if number < min(before, self.number)]
            for number in old:
                self._path(number).unlink()
            if old:
                sync_directory(self.directory)

    def _shorten(self, events: list[Event]) -> None:
        """Goes on in a file that begins with all that is needed, if that is shorter by far; the others go."""
        first = b"".join(record(EVENT, self._tag, 0, encode_event(event)) for event in events)
        self._checked = max(2 * self._end, LARGEST)
        if 4 * len(first) < self._end:
            self.forget(self.begin_file(first))

    @property
    def path(self) -> Path | None:
        """The file that is written to; None as long as there is none."""
        return self._path(self.number) if self.number else None

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:012d}.bin"

    def _numbers(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return sorted(int(found[1]) for path in self.directory.iterdir() if (found := NAME.fullmatch(path.name)))


def encode_event(event: Event) -> bytes:
    """An event as bytes.

    >>> decode_event(encode_event({"event": "asked", "x": np.array([1.0, 2.0])}))
    {'event': 'asked', 'x': array([1., 2.])}
    """
    blobs: list[bytes] = []

    def taken(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            blobs.append(np.ascontiguousarray(value).tobytes())
            return {"$array": [value.dtype.str, list(value.shape)]}
        if isinstance(value, dict):
            return {name: taken(part) for name, part in value.items()}
        return [taken(part) for part in value] if isinstance(value, (list, tuple)) else value

    text = json.dumps(taken(event)).encode()
    return b"".join((LENGTH.pack(len(text)), text, *blobs))


def decode_event(payload: bytes) -> Event:
    (length,) = LENGTH.unpack_from(payload)
    at = LENGTH.size + length

    def put(value: Any) -> Any:
        nonlocal at
        if isinstance(value, dict) and "$array" in value:
            dtype, shape = np.dtype(value["$array"][0]), tuple(value["$array"][1])
            size = math.prod(shape) * dtype.itemsize
            if dtype.kind not in KINDS or at + size > len(payload) or min(shape, default=0) < 0:
                raise BadInput(f"an event says that it has an array {shape} of {dtype}, which it does not hold")
            array = np.frombuffer(payload, dtype, math.prod(shape), at).reshape(shape).copy()
            at += size
            return array
        if isinstance(value, dict):
            return {name: put(part) for name, part in value.items()}
        return [put(part) for part in value] if isinstance(value, list) else value

    event: Event = put(json.loads(payload[LENGTH.size : at]))
    return event
