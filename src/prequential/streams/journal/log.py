"""The log of a journal: the file `log.bin` with its records and its index, how far it goes, and how it is written."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prequential.errors import BadInput, DamageWarning
from prequential.storage.files import new_file, open_own, opened, write_all
from prequential.storage.platforms import at_fork
from prequential.streams.journal.index import Index
from prequential.streams.journal.log_records import (
    EXAMPLE,
    GAP,
    HEAD,
    META,
    SKIPPABLE,
    Example,
    Found,
    Header,
    Window,
    copy_bytes,
    example_payload,
    gap,
    positions_of,
    read_header,
    record,
    scan,
)

TAIL = 1 << 14  # bytes of a scratch log that are kept in memory at most
BATCH = 4096  # offsets that are collected before they go to the index
READ, WRITE = os.O_RDONLY, os.O_RDWR

Durability = int | str  # every so many examples, "sync" (every call) or "save" (only when asked)


class Mark(NamedTuple):
    """How far a log had come."""

    length: int
    end: int


def check_durability(durability: Durability) -> Durability:
    """Refuses what does not say when to sync."""
    number = isinstance(durability, int) and not isinstance(durability, bool) and durability >= 1
    if not number and durability not in ("sync", "save"):
        raise BadInput(
            f"durability ({str(durability)[:40]!r}) must be 'sync', 'save' or a number of examples of at least 1"
        )
    return durability


def add_note(notes: list[str], sentence: str) -> None:
    """Says something about damage: as a warning, and in a list."""
    notes.append(sentence)
    warnings.warn(sentence, DamageWarning, stacklevel=4)


class Log:
    """Records one after the other in `log.bin`, and where each begins in `index.bin`.

    Every write goes to the end that this object knows. If the file is then longer than that, a write of its own that
    failed is cut off first, and what somebody else wrote is refused. No file stays open.

    A scratch log keeps its latest records in memory and writes them together: opening the file takes longer than all
    else that is done with one example.

    Parameters
    ----------
    directory
        Where the two files are.
    write
        Whether it may write to them; the index of a reader goes to a temporary file instead.
    scratch
        Whether the log need not survive its process: nothing is synced.
    durability
        After how many examples the log is synced: a number, "sync" for every call, "save" for only by `sync`.
    notes
        Where sentences on what is damaged or was repaired go.
    """

    def __init__(
        self, directory: Path, *, write: bool, scratch: bool, durability: Durability, notes: list[str]
    ) -> None:
        self.directory, self.path = directory, directory / "log.bin"
        self.write, self.scratch, self.durability = write, scratch, durability
        self.tag = 0  # which journal the records belong to
        self.length = 0  # examples
        self.end = 0  # bytes
        self.inode = 0  # of the file; 0: there is none
        self.index = Index(directory / "index.bin", self.tag)
        self._notes = notes
        self._unsynced = 0  # examples
        self._overhang = False  # whether a write that failed may have left bytes behind the end
        self._tail = bytearray()  # of a scratch log, what is before `end` and not in the file yet
        self._tail_lock = threading.RLock()
        if scratch:
            _scratch_logs.add(self)

    # Opening.

    def clear(self) -> None:
        """Forgets how far it goes; the files stay as they are."""
        self.index = Index(self.directory / "index.bin", self.tag)
        self.length = self.end = self.inode = 0
        self._tail.clear()

    def create(self, first: bytes) -> None:
        """Makes a new log that begins with this record, in place of the one that is there."""
        self._tail.clear()
        if self.scratch:
            with opened(self.path, WRITE | os.O_CREAT | os.O_TRUNC) as handle:
                write_all(handle, first, 0)
                self.inode = os.fstat(handle).st_ino
        else:
            with new_file(self.path) as handle:
                write_all(handle, first)
                self.inode = os.fstat(handle).st_ino
        self.length, self.end, self._overhang = 0, len(first), False
        self.index = Index(self.directory / "index.bin", self.tag)
        self.index.begin()

    def find_end(self) -> None:
        """Finds out how far the log goes, by its index and what lies behind that."""
        self.clear()
        with opened(self.path, READ) as handle:
            status = os.fstat(handle)
            self.inode = status.st_ino
            window = Window(handle, status.st_size, 4096)
            indexed = self.index.last(status.st_size, lambda position, offset: self._next(window, position, offset))
            if indexed is None:  # no index that could be used
                self.index.begin(temporary=not self.write)
                indexed = 0, 0
            self._scan_from(handle, *indexed, status.st_size, cut=self.write)

    def _next(self, window: Window, position: int, offset: int) -> tuple[int, int] | None:
        """Which position comes after the record of this one, and where; None if no such record is there."""
        header = read_header(window.get(offset, HEAD))
        if header is None or header.tag != self.tag or header.kind not in (EXAMPLE, GAP):
            return None
        if offset + header.size > window.end or header.position > position:
            return None
        payload = window.get(offset + HEAD, header.length)
        following = header.position + positions_of(header, payload)
        if zlib.crc32(payload) != header.crc or not header.position <= position < following:
            return None
        return following, offset + header.size

    def _scan_from(self, handle: int, length: int, end: int, size: int, *, cut: bool) -> None:
        """Takes what is in the log from here on; `cut` says whether what is no record at its end is cut off."""
        self.length, self.end = length, end
        offsets: list[int] = []
        for found in scan(handle, end, size, position=length, tag=self.tag):
            if found.header is None and (found.torn or (found.offset + found.size == size and not found.span)):
                if cut:
                    self._cut(handle, found)
                break
            if found.header is not None:
                self._check_kind(found.header)
            offsets += [found.offset] * found.span if found.span <= BATCH else []
            if found.span > BATCH or len(offsets) >= BATCH:
                self.index.extend(self.length, offsets, temporary=not self.write)
                if found.span > BATCH:
                    self.index.fill(found.position, found.span, found.offset, temporary=not self.write)
                self.length = found.position + found.span
                offsets = []
            self.end = found.offset + found.size
        if offsets:
            self.index.extend(self.length, offsets, temporary=not self.write)
            self.length += len(offsets)

    def _check_kind(self, header: Header) -> None:
        if header.kind not in (META, EXAMPLE, GAP) and not header.flags & SKIPPABLE:
            raise BadInput(
                f"{self.path} holds a record of kind {header.kind} at example {header.position}: a later "
                "version wrote it"
            )

    def _cut(self, handle: int, found: Found) -> None:
        """Cuts off what follows the last record and is none."""
        what = f"the last {found.size} bytes of {self.path} are no whole record"
        if not found.torn:  # not what a crash leaves
            place = self.set_aside(handle, found.offset, found.size, found.position)
            what += f" and were moved to {place.name}"
        with opened(self.path, WRITE) as log:
            os.ftruncate(log, found.offset)
            os.fsync(log)
        add_note(self._notes, f"{what}; the journal goes on after example {found.position - 1}")

    def set_aside(self, handle: int, offset: int, size: int, position: int) -> Path:
        """Copies bytes of the log to a file of their own."""
        place = self.directory / f"damaged-{position:012d}.bin"
        for number in range(2, 1000):
            if not place.exists():
                break
            place = self.directory / f"damaged-{position:012d}-{number}.bin"
        with new_file(place) as target:
            copy_bytes(handle, target, offset, offset + size)
        return place

    def rebuild_index(self, handle: int) -> None:
        """Rebuilds the index from the log, once; after that, a record that it does not find is damaged."""
        length, end = self.length, self.end
        self.index.begin(temporary=not self.write)
        self._scan_from(handle, 0, 0, end, cut=False)
        if self.length < length:  # at the end, nothing says how many there were
            self.index.fill(self.length, length - self.length, self.end, temporary=not self.write)
        self.length, self.end, self.index.rebuilt = length, end, True

    @contextlib.contextmanager
    def reading(self) -> Iterator[int]:
        """A handle on the file, in which all records are."""
        self.flush()
        with opened(self.path, READ) as handle:
            yield handle

    def locate(self, position: int) -> tuple[int, int]:
        """The first position that the record of this one covers, and the record's offset."""
        with self.reading() as handle:
            (offset,) = self.index.offsets(position, position + 1) or (self.end,)
            if self._next(Window(handle, self.end, 4096), position, offset) is None:
                self.rebuild_index(handle)  # it may be the index that is wrong
        first = position
        (offset,) = self.index.offsets(position, position + 1)
        while first and self.index.offsets(first - 1, first) == [offset]:
            first -= 1
        return first, offset

    # Writing.

    def append(self, examples: Sequence[bytes]) -> None:
        """Adds whole records of examples; all of them or, where something is raised, none."""
        offsets, end = [], self.end
        for data in examples:
            offsets.append(end)
            end += len(data)
        if self.scratch:
            self._append_to_tail(b"".join(examples), offsets)
            return
        unsynced = self._unsynced
        try:
            self._write(b"".join(examples), len(examples), self.end)
            self._overhang = True
            self.index.extend(self.length, offsets)
        except BaseException:
            self._unsynced = unsynced
            if self._overhang:
                self._trim()
            raise
        self._overhang = False
        self.length, self.end = self.length + len(examples), end

    def _append_to_tail(self, data: bytes, offsets: list[int]) -> None:
        with self._tail_lock:
            before = self.length, self.end
            self._tail += data
            self.length, self.end = self.length + len(offsets), self.end + len(data)
            try:
                self.index.append(before[0], offsets)
                if len(self._tail) > TAIL:
                    self.flush()
            except BaseException:
                self.length, self.end = before
                del self._tail[-len(data) :]
                raise

    def flush(self) -> None:
        """Writes what waits in memory."""
        if self._tail:
            with self._tail_lock:
                self._write(bytes(self._tail), 0, self.end - len(self._tail))
                self._tail.clear()

    def append_examples(
        self,
        rows: np.ndarray,
        labels: Sequence[bytes],
        asked_at: Sequence[int] | None = None,
        ids: Sequence[bytes] | None = None,
        origins: Sequence[bytes] | None = None,
    ) -> None:
        """Adds examples, given as x (n, ...) and the texts of their labels; all of them or none.

        Where they are not given, each was asked when all labels before it had arrived, and has neither id nor origin.
        """
        n = len(labels)
        if n == 1 == len(rows):  # the usual case, without what only several need
            asked = self.length if asked_at is None else asked_at[0]
            name, origin = b"" if ids is None else ids[0], b"" if origins is None else origins[0]
            payload = example_payload((asked, rows.tobytes(), labels[0], name, origin))
            self.append([record(EXAMPLE, self.tag, self.length, payload)])
            return
        examples = zip(
            range(self.length, self.length + n) if asked_at is None else asked_at,
            (row.tobytes() for row in rows),
            labels,
            [b""] * n if ids is None else ids,
            [b""] * n if origins is None else origins,
            strict=True,
        )
        self.append(
            [
                record(EXAMPLE, self.tag, position, example_payload(Example(*example)))
                for position, example in enumerate(examples, self.length)
            ]
        )

    def append_gap(self, count: int) -> None:
        """Adds a record that covers so many lost examples."""
        self.flush()
        data = gap(self.tag, self.length, count)
        self._write(data, 1, self.end)
        self.index.fill(self.length, count, self.end)
        self.length, self.end = self.length + count, self.end + len(data)

    def _write(self, data: bytes, count: int, end: int) -> None:
        """Writes at the end of the file, after a check that the file is as it was left; syncs when that is due."""
        handle = open_own(self.path, WRITE)
        try:
            status = os.fstat(handle)
            if self._overhang and status.st_ino == self.inode and status.st_size > end:
                os.ftruncate(handle, end)
            elif (status.st_ino, status.st_size) != (self.inode, end):
                raise BadInput(
                    f"another process has written to {self.path}: it has {status.st_size} bytes, expected {end}"
                )
            self._overhang = True
            write_all(handle, data, end)
            unsynced = self._unsynced + count
            if self._due(unsynced):
                os.fsync(handle)
                unsynced = 0
            self._overhang, self._unsynced = False, unsynced
        finally:
            os.close(handle)

    def _due(self, unsynced: int) -> bool:
        if self.scratch or self.durability == "save":
            return False
        return self.durability == "sync" or unsynced >= int(self.durability)

    def _trim(self) -> None:
        """Cuts off what a write that failed has left; where that fails too, the next write does it."""
        with contextlib.suppress(OSError), opened(self.path, WRITE) as handle:
            if os.fstat(handle).st_ino == self.inode:
                os.ftruncate(handle, self.end)
                self._overhang = False

    def rollback(self, mark: Mark) -> None:
        """Takes back what was appended since, as if it had never been; never fails."""
        if mark.length >= self.length:
            return
        with self._tail_lock:
            in_file = self.end - len(self._tail)
            self.length, self.end = mark
            del self._tail[max(mark.end - in_file, 0) :]
            if mark.end < in_file:
                self._overhang = True
                self._trim()

    def truncate(self, mark: Mark) -> None:
        """Cuts the log back to this place, for good."""
        self.flush()
        with opened(self.path, WRITE) as handle:
            os.ftruncate(handle, mark.end)
            if not self.scratch:
                os.fsync(handle)
        self.length, self.end = mark

    def sync(self) -> None:
        """Makes everything appended so far survive a power cut."""
        self.index.flush()
        with opened(self.path, WRITE) as handle:
            os.fsync(handle)
        self._unsynced = 0


_scratch_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _flush_all() -> None:
    """Before a fork: the other process may read what is in the files, and must not write to them."""
    for log in list(_scratch_logs):
        with contextlib.suppress(OSError, BadInput):
            log.flush()


def _new_locks() -> None:
    """In a forked process: the threads that held locks do not exist there."""
    for log in list(_scratch_logs):
        log._tail_lock = threading.RLock()
        log.index.lock = threading.RLock()


at_fork(before=_flush_all, after_in_child=_new_locks)
