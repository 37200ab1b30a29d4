"""The index of a journal's log: the offset of each record. It can be rebuilt from the log, so it is never trusted."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from prequential.storage.files import open_own, write_all
from prequential.streams.journal.log_records import read_at

HEAD = struct.Struct("<8sII")  # magic, tag of the journal, reserved
MAGIC = b"PQindex2"
ENTRY = 8
FARTHEST = 1 << 60  # behind the end of any log, for an entry that is damaged
WAITING = 64  # offsets that are kept in memory at most
BACK = 4  # records looked at from the end on, before another place is tried

# the length and the end of the log behind the record of a position, if it is where it is said to be
Ends = Callable[[int, int], tuple[int, int] | None]


class Index:
    """One offset (u64) for each position, in a file; one that only reads keeps its own in a temporary file instead.

    What `append` is given waits in memory, to be written together with more; what is lost of it is found in the log.

    Parameters
    ----------
    path
        Where it is kept.
    tag
        Of the journal it belongs to.
    """

    def __init__(self, path: Path, tag: int) -> None:
        self.path, self.tag = path, tag
        self.rebuilt = False  # whether this object has rebuilt it from the log
        self._temporary: IO[bytes] | None = None
        self._waiting: list[int] = []  # offsets that are not in the file yet
        self._first = 0  # the position of the first of them
        self.lock = threading.RLock()  # of these two

    def offsets(self, start: int, stop: int) -> list[int]:
        """Where the records of these positions begin; fewer where it does not go so far."""
        with self.lock:
            return self._offsets(start, stop)

    def _offsets(self, start: int, stop: int) -> list[int]:
        written = min(stop, self._first) if self._waiting else stop  # entries before this are in the file
        offsets: list[int] = []
        if start < written:
            with self._open(os.O_RDONLY) as handle:
                if handle is None:
                    return []
                data = read_at(handle, (written - start) * ENTRY, HEAD.size + start * ENTRY)
            offsets = np.minimum(np.frombuffer(data[: len(data) // ENTRY * ENTRY], "<u8"), FARTHEST).tolist()
            if len(offsets) < written - start:
                return offsets
        return offsets + self._waiting[max(start - self._first, 0) : stop - self._first] if written < stop else offsets

    def last(self, size: int, ends: Ends) -> tuple[int, int] | None:
        """Length and end of a log of `size` bytes after the last record whose offset here is right."""
        self.flush()
        with self._open(os.O_RDONLY) as handle:
            if handle is None or read_at(handle, HEAD.size, 0) != HEAD.pack(MAGIC, self.tag, 0):
                return None
            count = (os.fstat(handle).st_size - HEAD.size) // ENTRY

            def offset(position: int) -> int:
                data = read_at(handle, ENTRY, HEAD.size + position * ENTRY)
                return min(int.from_bytes(data, "little"), FARTHEST) if len(data) == ENTRY else size

            low, high = 0, count  # the first entry that lies behind the end of the log
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if offset(middle) < size else (low, middle)
            for position in range(low - 1, max(-1, low - 1 - BACK), -1):
                found = ends(position, offset(position))
                if found is not None:
                    return found
        return None

    def begin(self, *, temporary: bool = False) -> None:
        """Makes the index empty."""
        self._waiting = []
        if temporary:
            self._temporary = tempfile.TemporaryFile()  # noqa: SIM115 (kept until the journal is gone)
        with self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC) as handle:
            assert handle is not None
            write_all(handle, HEAD.pack(MAGIC, self.tag, 0), 0)

    def extend(self, start: int, offsets: Sequence[int], *, temporary: bool = False) -> None:
        """Sets the offsets of the records from a position on."""
        self.flush()
        self._put(start, np.asarray(offsets, "<u8").tobytes(), temporary)

    def append(self, position: int, offsets: Sequence[int]) -> None:
        """Sets the offsets of the records at the end of the log; those from this position on are forgotten."""
        with self.lock:
            kept = position - self._first
            if not 0 <= kept <= len(self._waiting):
                self.flush()
                kept = 0
            if not kept:
                self._first = position
            self._waiting[kept:] = offsets
            if len(self._waiting) >= WAITING:
                self.flush()

    def flush(self) -> None:
        """Writes what waits in memory."""
        with self.lock:
            if self._waiting:
                self._put(self._first, np.asarray(self._waiting, "<u8").tobytes(), self._temporary is not None)
                self._waiting = []

    def fill(self, start: int, count: int, offset: int, *, temporary: bool = False) -> None:
        """Sets the offset of many positions that one record covers."""
        self.flush()
        for first in range(start, start + count, 1 << 16):
            self._put(first, np.full(min(1 << 16, start + count - first), offset, "<u8").tobytes(), temporary)

    def copy(self, path: Path, count: int) -> None:
        """Writes the entries of the first `count` positions to another file."""
        other = Index(path, self.tag)
        other.begin()
        for start in range(0, count, 1 << 16):
            other.extend(start, self.offsets(start, min(start + (1 << 16), count)))

    def _put(self, start: int, data: bytes, temporary: bool) -> None:
        if temporary and self._temporary is None:
            self._copy()
        with self._open(os.O_RDWR | os.O_CREAT) as handle:
            assert handle is not None
            if start == 0:
                write_all(handle, HEAD.pack(MAGIC, self.tag, 0), 0)
            write_all(handle, data, HEAD.size + start * ENTRY)

    def _copy(self) -> None:
        """From here on in a temporary file, as it is so far."""
        copy = tempfile.TemporaryFile()  # noqa: SIM115 (kept until the journal is gone)
        with self._open(os.O_RDONLY) as handle:
            at = 0
            while handle is not None and (block := read_at(handle, 1 << 20, at)):
                write_all(copy.fileno(), block, at)
                at += len(block)
        self._temporary = copy

    @contextlib.contextmanager
    def _open(self, flags: int) -> Iterator[int | None]:
        if self._temporary is not None:
            yield self._temporary.fileno()
            return
        try:
            handle = open_own(self.path, flags)
        except FileNotFoundError:
            yield None
            return
        try:
            yield handle
        finally:
            os.close(handle)
