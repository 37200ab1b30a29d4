"""The journal of a live stream: every example that was learnt from, on disk, append-only, re-readable, verified."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import uuid
import warnings
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, DamageWarning
from prequential.labels import label_text, read_label
from prequential.storage.files import (
    KeptLock,
    make_directory,
    new_file,
    open_own,
    remove_temporaries,
    storage,
    sync_directory,
    write_all,
)
from prequential.storage.sealed import read_sealed, write_sealed
from prequential.streams.journal import format_1 as journal_v1
from prequential.streams.journal.index import Index
from prequential.streams.journal.records import (
    EXAMPLE,
    GAP,
    HEAD,
    META,
    SKIPPABLE,
    Example,
    Found,
    Header,
    Window,
    example_payload,
    gap,
    positions_of,
    read_at,
    read_example,
    read_header,
    read_run,
    record,
    scan,
    tag_of,
)
from prequential.streams.stream import Chunk, Stream

FORMAT = "prequential-journal-2"
CACHED = 4096  # texts of labels and the labels they are
_READ, _WRITE = os.O_RDONLY, os.O_RDWR

Durability = int | str  # every so many examples, "sync" (every call) or "save" (only when asked)


class Mark(NamedTuple):
    """How far a journal had come."""

    length: int
    end: int


class Journal(Stream):
    """An append-only stream on disk: a log of records, each with its position and checksums (docs/journal.md).

    Opened to read, nothing is ever written, and a journal that another process is writing can be followed:
    `refresh()` takes what has been added since. Opened to write, there is one writer at a time. Memory does not grow
    with the journal, and no file stays open.

    Parameters
    ----------
    directory
        Where it is kept; made if it does not exist and `write` is set.
    write
        Whether examples are to be appended. What a crash has left unfinished at the end is then cut off, with a
        `DamageWarning`.
    durability
        After how many examples the log is synced to disk: a number, "sync" for every call of `append`, or "save" for
        only when `sync()` is called.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> journal = Journal(folder, write=True)
    >>> journal.append(np.array([[1.0, 2.0], [3.0, 4.0]]), ["rain", "sun"])
    >>> follower = Journal(folder)
    >>> journal.append(np.array([[5.0, 6.0]]), ["rain"])
    >>> follower.refresh()
    3
    >>> follower.read(1, 3).y
    ['sun', 'rain']
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        write: bool = False,
        durability: Durability = 100,
        identity: str | None = None,
        lock: KeptLock | None = None,
        scratch: bool = False,
    ) -> None:
        self.directory, self.write = Path(directory), write
        self.notes: list[str] = []  # what is damaged or was repaired, a sentence each
        self.durability = check_durability(durability)
        self._expected = identity  # the id it must have
        self._scratch = scratch  # private to this process and gone with it: nothing is synced
        self._pid = os.getpid()
        self._meta: dict[str, Any] | None = None
        self._shape: tuple[int, ...] | None = None
        self._dtype = np.dtype(np.float64)
        self._tag = 0
        self._length = self._end = self._inode = 0
        self._unsynced = 0
        self._overhang = False  # whether a write that failed may have left bytes behind the end
        self._index: Index | None = None
        self.missing_log = False  # whether there were examples once, and no log is there
        self._old: journal_v1.OldJournal | None = None
        self._read_labels: dict[bytes, Hashable] = {}
        self._written_labels: dict[tuple[type, Hashable], bytes] = {}
        self._noted: set[int] = set()
        self._lock = lock
        if write:
            with storage(self.directory):
                make_directory(self.directory)
                if lock is None and not scratch:
                    self._lock = KeptLock(_lock_place(self.directory))
                    weakref.finalize(self, self._lock.free)
                remove_temporaries(self.directory)
        elif not self.directory.is_dir():
            raise BadInput(f"{self.directory} holds no journal")
        with storage(self.directory):
            self._open()

    # Opening.

    def _open(self) -> None:
        self._old, self._meta = None, None
        cover, problem = self._read_cover()
        if cover is not None and cover.get("format") == journal_v1.FORMAT:
            self._old = journal_v1.OldJournal(self.directory, cover)
            if not self.write:
                self._shape, self._dtype, self._length = self._old.shape, self._old.dtype, self._old.length
                return
            self._convert(self._old)
            cover, problem = self._read_cover()
        elif cover is not None and cover.get("format") != FORMAT:
            raise BadInput(
                f"{self.directory / 'journal.json'} has format {str(cover.get('format'))[:40]!r}, expected {FORMAT!r}"
            )
        meta = self._read_meta()
        if meta is not None and cover is not None and cover["id"] != meta["id"]:
            self._disagree(cover, meta)
            cover = None
        if meta is None and cover is None and self._log.exists() and self._log.stat().st_size >= HEAD:
            raise BadCheckpoint(
                f"{problem or self._log}; the beginning of {self._log} is damaged too, so that its examples cannot be read"
            )
        if problem and meta is None and not self.write:  # nothing else says what was here
            raise BadCheckpoint(problem)
        self._take_meta(cover if cover is not None and cover.get("shape") is not None else meta or cover)
        if self._expected is not None and self._meta is not None and self._meta["id"] != self._expected:
            raise BadInput(f"{self.directory} belongs to another learner: its id is {self._meta['id'][:40]}")
        if problem and self.write:
            self._note(f"{problem}; it was made anew")
            if self._meta is not None:
                self._write_cover()
        self._find_end()
        if self.write and self._inode:
            for name in journal_v1.FILES:  # of a conversion that ended before it had tidied up
                (self.directory / name).unlink(missing_ok=True)

    @property
    def _log(self) -> Path:
        return self.directory / "log.bin"

    def _read_cover(self) -> tuple[dict[str, Any] | None, str]:
        """What journal.json says, and what is wrong with it."""
        path = self.directory / "journal.json"
        if not path.exists() and not path.is_symlink():
            if not self._log.exists() and any((self.directory / name).exists() for name in journal_v1.FILES):
                raise BadCheckpoint(f"{path} is missing: it says how to read the other files in {self.directory}")
            return None, "" if self._scratch or not self._log.exists() else f"{path} is missing"
        try:
            cover = read_sealed(path)
            if cover.get("format") == FORMAT:
                _check_meta(cover, str(path))
            return cover, ""
        except BadCheckpoint as error:
            if path.is_symlink() or any((self.directory / name).exists() for name in journal_v1.FILES):
                raise
            return None, str(error)

    def _read_meta(self) -> dict[str, Any] | None:
        """What the first record of the log says."""
        if self._log.is_symlink():
            raise BadInput(f"{self._log} is a symbolic link, expected a file")
        if not self._log.is_file():
            return None
        with _opened(self._log, _READ) as handle:
            window = Window(handle, os.fstat(handle).st_size, 4096)
            header = read_header(window.get(0, HEAD))
            if header is None or header.kind != META or header.length > 1 << 16:
                return None
            payload = window.get(HEAD, header.length)
        if zlib.crc32(payload) != header.crc:
            return None
        try:
            meta: dict[str, Any] = json.loads(payload)
            _check_meta(meta, str(self._log))
        except (ValueError, BadCheckpoint):
            return None
        return meta

    def _disagree(self, cover: dict[str, Any], meta: dict[str, Any]) -> None:
        """The log and journal.json are of two journals: the log is used if it is the one that is expected."""
        if self._expected is not None and meta["id"] != self._expected:
            raise BadInput(
                f"{self._log} belongs to another learner: its id is {meta['id'][:40]}, expected {self._expected}"
            )
        path = self.directory / "journal.json"
        if self._expected is None and cover.get("shape") is not None:
            raise BadInput(
                f"{path} and {self._log.name} belong to two journals: {cover['id'][:40]} and {meta['id'][:40]}"
            )
        if self.write:
            self._take_meta(meta)
            self._note(f"{path} belonged to another journal; it was made anew")
            self._write_cover()

    def _take_meta(self, meta: dict[str, Any] | None) -> None:
        self._meta, self._shape, self._tag = meta, None, 0
        if meta is not None:
            self._tag = tag_of(meta["id"])
            if meta.get("shape") is not None:
                self._shape, self._dtype = tuple(meta["shape"]), np.dtype(meta["dtype"])

    def _find_end(self) -> None:
        """Finds out how far the log goes, by its index and what lies behind that."""
        self._index = Index(self.directory / "index.bin", self._tag)
        self._length = self._end = self._inode = 0
        if self._shape is None:
            return
        self.missing_log = not self._log.exists() or not self._log.stat().st_size
        if self.missing_log:
            self._note(f"{self._log} is {'empty' if self._log.exists() else 'missing'}")
            return
        with _opened(self._log, _READ) as handle:
            status = os.fstat(handle)
            self._inode = status.st_ino
            window = Window(handle, status.st_size, 4096)
            begun = self._index.last(status.st_size, lambda position, offset: self._ends(window, position, offset))
            if begun is None:  # no index that could be used
                self._index.begin(temporary=not self.write)
                begun = 0, 0
            self._go_on(handle, *begun, status.st_size, cut=self.write)

    def _ends(self, window: Window, position: int, offset: int) -> tuple[int, int] | None:
        """Behind the record of a position: which one comes next, and where; None if no such record is there."""
        header = read_header(window.get(offset, HEAD))
        if header is None or header.tag != self._tag or header.kind not in (EXAMPLE, GAP):
            return None
        if offset + header.size > window.end or header.position > position:
            return None
        payload = window.get(offset + HEAD, header.length)
        following = header.position + positions_of(header, payload)
        if zlib.crc32(payload) != header.crc or not header.position <= position < following:
            return None
        return following, offset + header.size

    def _go_on(self, handle: int, length: int, end: int, size: int, *, cut: bool) -> None:
        """Takes what is in the log from here on; `cut` says whether what is no record at its end is cut off."""
        assert self._index is not None
        self._length, self._end = length, end
        waiting: list[int] = []
        for found in scan(handle, end, size, position=length, tag=self._tag):
            if found.header is None and (found.torn or (found.offset + found.size == size and not found.span)):
                if cut:
                    self._cut(handle, found)
                break
            if found.header is not None:
                self._check_kind(found.header)
            waiting += [found.offset] * found.span if found.span <= CACHED else []
            if found.span > CACHED or len(waiting) >= CACHED:
                self._index.extend(self._length, waiting, temporary=not self.write)
                if found.span > CACHED:
                    self._index.fill(found.position, found.span, found.offset, temporary=not self.write)
                self._length = found.position + found.span
                waiting = []
            self._end = found.offset + found.size
        if waiting:
            self._index.extend(self._length, waiting, temporary=not self.write)
            self._length += len(waiting)
        self._read_labels.clear()

    def _check_kind(self, header: Header) -> None:
        if header.kind not in (META, EXAMPLE, GAP) and not header.flags & SKIPPABLE:
            raise BadInput(
                f"{self._log} holds a record of kind {header.kind} at example {header.position}: a later version wrote it"
            )

    def _cut(self, handle: int, found: Found) -> None:
        """What follows the last record is none: a writer cuts it off."""
        what = f"the last {found.size} bytes of {self._log} are no whole record"
        if not found.torn:  # not what a crash leaves
            place = self._set_aside(handle, found.offset, found.size, found.position)
            what += f" and were moved to {place.name}"
        with _opened(self._log, _WRITE) as log:
            os.ftruncate(log, found.offset)
            os.fsync(log)
        self._note(f"{what}; the journal goes on after example {found.position - 1}")

    # Reading.

    def __len__(self) -> int:
        return self._length

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one x, once there is one."""
        return self._shape

    @property
    def identity(self) -> str | None:
        return None if self._meta is None else str(self._meta["id"])

    @property
    def generation(self) -> int:
        """How often positions that had been given were given anew."""
        return len(self._restarts)

    @property
    def _restarts(self) -> list[int]:
        return list((self._meta or {}).get("restarts", []))

    def holds(self, generation: int, position: int) -> bool:
        """Whether the first `position` examples are still those that they were in an earlier generation."""
        return position <= min(self._restarts[generation:], default=position)

    def stamp(self, length: int) -> int | None:
        """The checksum of the last of the first `length` examples; None if there is none that can be read."""
        if not 0 < length <= self._length:
            return None
        ((_, example, _),) = self._examples(length - 1, length)
        return None if example is None else zlib.crc32(example_payload(example))

    def refresh(self) -> int:
        """Takes what has been added since, by whoever writes it; the length now."""
        if not self.write:
            with storage(self.directory):
                try:
                    size, inode = (status := self._log.stat()).st_size, status.st_ino
                except FileNotFoundError:
                    size = inode = -1
                if self._old is not None or self._shape is None or inode != self._inode or size < self._end:
                    self._open()
                elif size > self._end:
                    self._find_end()
        return self._length

    def _read(self, start: int, stop: int) -> Chunk:
        chunk, lost = self._chunk(start, stop)
        if lost:
            position, reason = lost[0]
            raise BadInput(f"{self.directory}: example {position} is damaged: {reason}")
        return chunk

    def readable(self, start: int, stop: int) -> Chunk:
        """The examples start..stop-1 without those that are damaged or lost."""
        chunk, lost = self._chunk(start, min(stop, self._length))
        new = [(position, reason) for position, reason in lost if reason != LOST and position not in self._noted]
        if new and len(self._noted) < CACHED:
            self._noted.update(position for position, _ in new)
            which = ranges([position for position, _ in new])
            self._note(f"{self.directory}: {which} damaged and left out: {new[0][1]}")
        return chunk

    def damaged(self, start: int = 0, stop: int | None = None) -> list[tuple[int, str]]:
        """The positions that cannot be read, and why; everything is verified."""
        found: list[tuple[int, str]] = []
        stop = self._length if stop is None else min(stop, self._length)
        for first in range(start, stop, 1024):
            found += self._chunk(first, min(first + 1024, stop))[1]
        return found

    def _chunk(self, start: int, stop: int) -> tuple[Chunk, list[tuple[int, str]]]:
        assert self._shape is not None
        if self._old is None and (run := self._run(start, stop)) is not None:
            labels = [self._read_labels.get(text, _UNKNOWN) for text in run[1]]
            if _UNKNOWN in labels:
                labels = [self._label(text) for text in run[1]]
            return Chunk(run[0].view(self._dtype).reshape(stop - start, *self._shape), labels), []
        xs: list[bytes | memoryview] = []
        ys: list[Hashable] = []
        lost: list[tuple[int, str]] = []
        for position, example, reason in self._examples(start, stop):
            if example is None:
                lost.append((position, reason))
                continue
            xs.append(example.x)
            ys.append(self._label(example.label))
        x = np.frombuffer(bytearray().join(xs), self._dtype)
        return Chunk(x.reshape(len(ys), *self._shape), ys), lost

    def _run(self, start: int, stop: int) -> tuple[np.ndarray, list[bytes]] | None:
        """The bytes of x and the texts of labels, if every one of these examples is where and as it should be."""
        assert self._index is not None
        assert self._shape is not None
        with storage(self.directory):
            offsets = self._index.offsets(start, stop + 1)
            offsets = offsets[: stop - start] + ([self._end] if stop == self._length else offsets[stop - start :])
            if len(offsets) != stop - start + 1 or not 0 < offsets[-1] - offsets[0] <= self._end:
                return None
            with _opened(self._log, _READ) as handle:
                data = read_at(handle, offsets[-1] - offsets[0], offsets[0])
        if len(data) != offsets[-1] - offsets[0]:
            return None
        size = math.prod(self._shape) * self._dtype.itemsize
        places = np.asarray(offsets[:-1], np.int64) - offsets[0]
        return read_run(data, places, position=start, tag=self._tag, size=size)

    def _label(self, text: bytes) -> Hashable:
        label = self._read_labels.get(text, _UNKNOWN)
        if label is _UNKNOWN:
            label = read_label(text)
            if len(self._read_labels) >= CACHED:
                self._read_labels.clear()
            self._read_labels[text] = label
        return label

    def _examples(self, start: int, stop: int) -> list[tuple[int, Example | None, str]]:
        """Positions, what is kept of them, and why nothing is."""
        with storage(self.directory):
            if self._old is not None:
                return [
                    (position, None, "its label is missing")
                    if label is None
                    else (position, Example(position, x.tobytes(), label_text(label[0]).encode(), b"", b""), "")
                    for position, x, label in self._old.read(start, stop)
                ]
            assert self._index is not None
            with _opened(self._log, _READ) as handle:
                found, sure = self._by_index(handle, start, stop)
                if not sure:
                    self._rebuild(handle)
                    found, _ = self._by_index(handle, start, stop)
        return found

    def _by_index(self, handle: int, start: int, stop: int) -> tuple[list[tuple[int, Example | None, str]], bool]:
        """What is found where the index says; and whether what is not found there is damage, and not the index's."""
        assert self._index is not None
        assert self._shape is not None
        size = math.prod(self._shape) * self._dtype.itemsize
        first = max(0, start - 1)  # one more: where it ends, the first one begins
        offsets = self._index.offsets(first, stop)
        expected = offsets[-1] - offsets[start - first] + 2 * (size + 4096) if offsets else 0
        window = Window(handle, self._end, min(max(expected, 1 << 12), 1 << 26))
        found: list[tuple[int, Example | None, str]] = []
        sure = len(offsets) == stop - first
        end = -1  # where the record before it ends; an index that agrees is right about where this one should be
        if start > first and offsets:
            header = read_header(window.get(offsets[0], HEAD))
            end = offsets[0] + header.size if header is not None and header.tag == self._tag else -1
        for position, offset in zip(range(start, stop), offsets[start - first :], strict=False):
            header = read_header(window.get(offset, HEAD))
            if header is not None and header.tag == self._tag:
                payload = window.get(offset + HEAD, header.length)
                if len(payload) == header.length and zlib.crc32(payload) == header.crc:
                    if header.kind == EXAMPLE and header.position == position:
                        example = read_example(payload)
                        good = example is not None and len(example.x) == size
                        found.append((position, example if good else None, "" if good else "its parts do not add up"))
                        end = offset + header.size
                        continue
                    if header.kind == GAP and 0 <= position - header.position < positions_of(header, payload):
                        found.append((position, None, LOST))
                        end = offset + header.size
                        continue
            sure = sure and (offset == end or self._index.rebuilt)
            end = offset + header.size if header is not None and header.tag == self._tag else -1
            found.append((position, None, "its checksum is wrong"))
        return found, sure or self._index.rebuilt

    def _rebuild(self, handle: int) -> None:
        """Makes the index anew from the log, once: after that, what it does not find is damaged."""
        assert self._index is not None
        length, end = self._length, self._end
        self._index.begin(temporary=not self.write)
        self._go_on(handle, 0, 0, end, cut=False)
        if self._length < length:  # at the end, nothing says how many there were
            self._index.fill(self._length, length - self._length, self._end, temporary=not self.write)
        self._length, self._end, self._index.rebuilt = length, end, True

    @property
    def known(self) -> list[Hashable]:
        """The labels that occur, in the order they first did; reads all of it."""
        labels: dict[Hashable, None] = {}
        for start in range(0, self._length, 1024):
            labels.update(dict.fromkeys(self.readable(start, start + 1024).y))
        return list(labels)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self._shape}{self._dtype}{self._length}".encode())
        names = journal_v1.FILES[::-1] if self._old is not None else ("log.bin",)
        with storage(self.directory):
            for name in names:
                if (self.directory / name).exists():
                    with open(self.directory / name, "rb") as file:
                        digest.update(_digest(file, self._end if self._old is None else None))
        return f"journal-{digest.hexdigest()[:16]}"

    # Writing.

    def append(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        """Adds examples at the end: all of them, or where something is raised, none."""
        self._check_writer()
        texts = [self._text(label) for label in y]
        if len(texts) != len(x):
            raise BadInput(f"got {len(x)} inputs and {len(texts)} labels")
        with storage(self._log):
            self._begin(x)
            rows = np.ascontiguousarray(x, self._dtype)
            made = [
                record(EXAMPLE, self._tag, position, example_payload(Example(position, row.tobytes(), text, b"", b"")))
                for position, (row, text) in enumerate(zip(rows, texts, strict=True), self._length)
            ]
            self._append(made)

    def append_gap(self, count: int, like: np.ndarray | None = None) -> None:
        """Goes on so many positions later: the examples in between are lost.

        Where there are no examples at all, `like` (1, ...) says what they look like.
        """
        self._check_writer()
        if like is not None and self._shape is None:
            with storage(self._log):
                self._begin(like)
        if not self._inode:
            with storage(self._log):
                self._make_log()
        assert self._index is not None
        while count:
            part = min(count, 1 << 31)
            with storage(self._log):
                data = gap(self._tag, self._length, part)
                self._write(data, 1)
                self._index.fill(self._length, part, self._end)
            self._length, self._end, count = self._length + part, self._end + len(data), count - part
        self.sync()

    def _append(self, made: list[bytes]) -> None:
        assert self._index is not None
        offsets, end = [], self._end
        for data in made:
            offsets.append(end)
            end += len(data)
        unsynced = self._unsynced
        try:
            self._write(b"".join(made), len(made))
            self._overhang = True
            self._index.extend(self._length, offsets)
        except BaseException:
            self._unsynced = unsynced
            if self._overhang:
                self._trim()
            raise
        self._overhang = False
        self._length, self._end = self._length + len(made), end

    def _write(self, data: bytes, count: int) -> None:
        """Writes at the end, after a look whether it is where it was left; syncs when it is time to."""
        with _opened(self._log, _WRITE) as handle:
            status = os.fstat(handle)
            if self._overhang and status.st_ino == self._inode and status.st_size > self._end:
                os.ftruncate(handle, self._end)
            elif (status.st_ino, status.st_size) != (self._inode, self._end):
                raise BadInput(
                    f"another process has written to {self._log}: it has {status.st_size} bytes, expected {self._end}"
                )
            self._overhang = True
            write_all(handle, data, self._end)
            unsynced = self._unsynced + count
            if self._due(unsynced):
                os.fsync(handle)
                unsynced = 0
            self._overhang, self._unsynced = False, unsynced

    def _due(self, unsynced: int) -> bool:
        if self._scratch or self.durability == "save":
            return False
        return self.durability == "sync" or unsynced >= int(self.durability)

    def _trim(self) -> None:
        """Cuts off what a write that failed has left; where that fails too, the next write does it."""
        with contextlib.suppress(OSError), _opened(self._log, _WRITE) as handle:
            if os.fstat(handle).st_ino == self._inode:
                os.ftruncate(handle, self._end)
                self._overhang = False

    def mark(self) -> Mark:
        """Where it stands, for `rollback`."""
        return Mark(self._length, self._end)

    def rollback(self, mark: Mark) -> None:
        """Takes back what was appended since, as if it had never been; never fails."""
        if mark.length < self._length:
            self._length, self._end = mark
            self._overhang = True
            self._trim()

    def _check_writer(self) -> None:
        if not self.write:
            raise BadInput(f"the journal {self.directory} was opened to read; Journal(directory, write=True) appends")
        if os.getpid() != self._pid:
            raise BadInput(
                f"this process was forked from the one that writes to {self.directory}: it may read, but not write"
            )
        if self._lock is not None:
            with storage(self.directory):
                self._lock.ensure()

    def _text(self, label: Hashable) -> bytes:
        kind: type = type(label)
        if kind not in (str, int, bool):  # others may be equal and yet have different texts
            return label_text(label).encode()
        text = self._written_labels.get((kind, label))
        if text is None:
            text = label_text(label).encode()
            if len(self._written_labels) >= CACHED:
                self._written_labels.clear()
            self._written_labels[kind, label] = text
        return text

    def _begin(self, x: np.ndarray) -> None:
        """Makes the log for examples like these, or checks that they are like the others."""
        # a vector may be followed by one with fractions or larger numbers; images are all of a kind
        dtype = x.dtype if x.ndim > 2 and x.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
        if self._shape is not None and (self._length or (self._shape, self._dtype) == (x.shape[1:], dtype)):
            if x.shape[1:] != self._shape:
                raise BadInput(f"x has shape {x.shape[1:]}, but the examples of {self.directory} have {self._shape}")
            if not self._inode:
                self._make_log()
            return
        before = self._meta
        identity = self.identity or self._expected or uuid.uuid4().hex
        self._take_meta({**_meta(identity, x.shape[1:], dtype), "restarts": self._restarts})
        try:
            self._make_log()
            self._write_cover()
        except BaseException:
            self._take_meta(before)
            raise

    def _make_log(self) -> None:
        assert self._meta is not None
        data = record(META, self._tag, 0, json.dumps(self._meta).encode())
        if self._scratch:
            with _opened(self._log, _WRITE | os.O_CREAT | os.O_TRUNC) as handle:
                write_all(handle, data, 0)
                self._inode = os.fstat(handle).st_ino
        else:
            with new_file(self._log) as handle:
                write_all(handle, data)
                self._inode = os.fstat(handle).st_ino
        self._length, self._end, self._overhang = 0, len(data), False
        self._index = Index(self.directory / "index.bin", self._tag)
        self._index.begin()

    def _write_cover(self) -> None:
        assert self._meta is not None
        if not self._scratch:
            write_sealed(self.directory / "journal.json", self._meta)

    def claim(self, identity: str) -> None:
        """Gives a new journal its id."""
        self._expected = identity
        if self._meta is None:
            with storage(self.directory):
                self._take_meta({"format": FORMAT, "id": identity, "restarts": [], "shape": None, "dtype": None})
                self._write_cover()

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` examples."""
        if length > self._length:
            raise BadInput(f"the journal {self.directory} holds {self._length} examples, expected at least {length}")
        if length == self._length:
            return
        self._check_writer()
        with storage(self._log):
            first, offset = self._begins(length)
            self._restart(length)
            with _opened(self._log, _WRITE) as handle:
                os.ftruncate(handle, offset)
                if not self._scratch:
                    os.fsync(handle)
            self._length, self._end = first, offset
        self.append_gap(length - first)

    def _begins(self, position: int) -> tuple[int, int]:
        """Where the record of a position is, and the first position that it stands for."""
        assert self._index is not None
        with _opened(self._log, _READ) as handle:
            (offset,) = self._index.offsets(position, position + 1) or (self._end,)
            if self._ends(Window(handle, self._end, 4096), position, offset) is None:
                self._rebuild(handle)  # it may be the index that is wrong
        first = position
        (offset,) = self._index.offsets(position, position + 1)
        while first and self._index.offsets(first - 1, first) == [offset]:
            first -= 1
        return first, offset

    def _restart(self, position: int) -> None:
        """Says that from here on positions are given anew: what was saved beyond it is no longer of this journal."""
        assert self._meta is not None
        self._meta = {**self._meta, "restarts": [*self._restarts, position]}
        self._write_cover()

    def sync(self) -> None:
        """Makes everything appended so far survive a power cut."""
        if self._inode and not self._scratch:
            with storage(self._log), _opened(self._log, _WRITE) as handle:
                os.fsync(handle)
            self._unsynced = 0

    # Making one journal of another.

    def compact(self, start: int) -> list[int]:
        """Closes the holes from `start` on: what follows them moves up. The positions that were lost.

        What is damaged is copied to a file of its own first; the log is replaced in one go.
        """
        self._check_writer()
        lost = [position for position, _ in self.damaged(start)]
        if not lost:
            return []
        with storage(self.directory):
            earliest, offset = self._begins(start)
            self._restart(lost[0])
            with _opened(self._log, _READ) as handle, new_file(self._log) as target:
                write_all(target, record(META, self._tag, 0, json.dumps(self._meta).encode()))
                begun = next(scan(handle, 0, self._end, position=0, tag=self._tag), None)
                _copy_bytes(handle, target, begun.size if begun is not None and not begun.span else 0, offset)
                if earliest < start:
                    write_all(target, gap(self._tag, earliest, start - earliest))
                position = start
                for found in scan(handle, offset, self._end, position=earliest, tag=self._tag):
                    if found.header is None:
                        self._set_aside(handle, found.offset, found.size, found.position)
                    elif found.header.kind == EXAMPLE and (example := read_example(found.payload)) is not None:
                        moved = example._replace(asked_at=max(0, example.asked_at - (found.position - position)))
                        write_all(target, record(EXAMPLE, self._tag, position, example_payload(moved)))
                        position += 1
        self._open()
        return lost

    def _set_aside(self, handle: int, offset: int, size: int, position: int) -> Path:
        """Copies bytes of the log to a file of their own."""
        place = self.directory / f"damaged-{position:012d}.bin"
        for number in range(2, 1000):
            if not place.exists():
                break
            place = self.directory / f"damaged-{position:012d}-{number}.bin"
        with new_file(place) as target:
            _copy_bytes(handle, target, offset, offset + size)
        return place

    def copy(self, directory: str | Path, *, identity: str | None = None, scratch: bool = False) -> None:
        """Writes a journal with the same examples to another directory, in place of what is there."""
        target = Path(directory)
        with storage(target):
            make_directory(target)
            for name in ("journal.json", "index.bin", "log.bin"):
                (target / name).unlink(missing_ok=True)
            if self._shape is None:
                return
            make: Callable[[Path], Any] = _plain_file if scratch else new_file
            if self._old is None and identity in (None, self.identity):
                assert self._index is not None
                meta = self._meta or {}
                with _opened(self._log, _READ) as log, make(target / "log.bin") as handle:
                    _copy_bytes(log, handle, 0, self._end)
                self._index.copy(target / "index.bin", self._length)
            else:
                identity = identity or uuid.uuid4().hex
                meta = _meta(identity, self._shape, self._dtype)
                with make(target / "log.bin") as handle:
                    self._write_anew(handle, meta)
            if not scratch:
                write_sealed(target / "journal.json", meta)

    def _write_anew(self, handle: int, meta: dict[str, Any]) -> None:
        """All examples as those of a journal with another id."""
        tag = tag_of(meta["id"])
        write_all(handle, record(META, tag, 0, json.dumps(meta).encode()))
        for data in self._retagged(tag):
            write_all(handle, data)

    def _retagged(self, tag: int) -> Iterator[bytes]:
        """All records as those of a journal with this tag, a block at a time."""
        for start in range(0, self._length, 1024):
            made = []
            for position, example, _ in self._examples(start, min(start + 1024, self._length)):
                made.append(
                    gap(tag, position, 1)
                    if example is None
                    else record(EXAMPLE, tag, position, example_payload(example))
                )
            yield b"".join(made)

    def _convert(self, old: journal_v1.OldJournal) -> None:
        """Writes a journal of the first format anew in this one; the old files go when the new ones are safe."""
        meta = _meta(self._expected or uuid.uuid4().hex, old.shape, old.dtype)
        self._shape, self._dtype, self._length = old.shape, old.dtype, old.length
        (self.directory / "index.bin").unlink(missing_ok=True)
        with new_file(self._log) as handle:
            self._write_anew(handle, meta)
        write_sealed(self.directory / "journal.json", meta)
        self._old = None
        for name in journal_v1.FILES:
            (self.directory / name).unlink(missing_ok=True)
        sync_directory(self.directory)

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        warnings.warn(sentence, DamageWarning, stacklevel=3)

    def close(self) -> None:
        """Lets another writer have it; reading goes on to work."""
        self.write = False
        if self._lock is not None:
            self._lock.free()

    def __reduce_ex__(self, protocol: object) -> Any:
        if self.write:
            raise BadInput(f"the journal {self.directory} is open to write and cannot be pickled or copied; use copy()")
        return Journal, (self.directory,)


_UNKNOWN = object()
LOST = "it was lost"


def check_durability(durability: Durability) -> Durability:
    """Refuses what does not say when to sync."""
    number = isinstance(durability, int) and not isinstance(durability, bool) and durability >= 1
    if not number and durability not in ("sync", "save"):
        raise BadInput(
            f"durability ({str(durability)[:40]!r}) must be 'sync', 'save' or a number of examples of at least 1"
        )
    return durability


def _meta(identity: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """What a new journal says of itself."""
    return {"format": FORMAT, "id": identity, "restarts": [], "shape": list(shape), "dtype": str(dtype)}


def _check_meta(meta: Any, name: str) -> None:
    """Refuses what does not describe a journal."""
    try:
        shape, good = meta["shape"], isinstance(meta["id"], str) and meta["format"] == FORMAT
        good = good and all(isinstance(position, int) for position in meta["restarts"])
        if shape is not None:
            good = good and 1 <= len(shape) <= 3 and all(isinstance(n, int) and 1 <= n < 1 << 31 for n in shape)
            good = good and meta["dtype"] in ("float64", "float32", "uint8")
    except (KeyError, TypeError):
        good = False
    if not good:
        raise BadCheckpoint(f"{name} is damaged: it does not describe a journal")


def _lock_place(directory: Path) -> Path:
    """What is locked: the home a journal is in, where it is in one."""
    return directory.parent if (directory.parent / "learner.json").exists() else directory


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = open_own(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _plain_file(path: Path) -> Iterator[int]:
    """A file that need not survive anything."""
    with _opened(path, _WRITE | os.O_CREAT | os.O_TRUNC) as handle:
        yield handle


def _copy_bytes(source: int, target: int, start: int, stop: int) -> None:
    window = Window(source, stop)
    while start < stop:
        block = window.get(start, 1 << 20)
        if not block:
            return
        write_all(target, block)
        start += len(block)


def _digest(file: IO[bytes], size: int | None) -> bytes:
    digest = hashlib.sha256()
    left = size
    while block := file.read(1 << 20 if left is None else min(1 << 20, left)):
        digest.update(block)
        left = None if left is None else left - len(block)
    return digest.digest()


def ranges(positions: Iterable[int]) -> str:
    """Positions as a person writes them: examples 3, 7-9 are."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:5]] + (["…"] if len(runs) > 5 else [])
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"example {parts[0]} is" if single else f"examples {', '.join(parts)} are"
