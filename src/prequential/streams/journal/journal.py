"""The journal of a live stream: every example that was learned from, on disk, append-only, re-readable, verified."""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
import zlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.storage.files import KeptLock, make_directory, new_file, remove_temporaries, storage
from prequential.storage.sealed import write_sealed
from prequential.streams.journal import format_1
from prequential.streams.journal.copying import close_gaps, convert, copy_log, plain_file, write_log
from prequential.streams.journal.log import Durability, Log, Mark, add_note, check_durability
from prequential.streams.journal.log_records import example_payload, tag_of
from prequential.streams.journal.metadata import (
    Metadata,
    metadata_record,
    new_metadata,
    read_json_metadata,
    reconcile,
)
from prequential.streams.journal.reader import CACHED, Reader
from prequential.streams.journal.reading import LOST, ranges
from prequential.streams.stream import Chunk, Stream

BLOCK = 1024  # examples read at a time
LONGEST_GAP = 1 << 31  # examples that one record may stand for

FLOAT64 = np.dtype(np.float64)


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
    identity
        The id that it must have.
    lock
        A lock that the writer holds already; by default it takes one of its own.
    scratch
        Whether it is private to this process and need not survive it: nothing is synced and there is no lock.

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
        self.missing_log = False  # whether there were examples once, and no log is there
        self._expected = identity
        self._scratch = scratch
        self._process = os.getpid()
        self._metadata: Metadata | None = None
        self._log = Log(self.directory, write=write, scratch=scratch, durability=durability, notes=self.notes)
        self._reader = Reader(self._log)
        self._noted: set[int] = set()  # positions whose damage was reported
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
        reader = self._reader
        reader.old, self._metadata = None, None
        stated, problem = read_json_metadata(self.directory, scratch=self._scratch)
        if stated is not None and stated.get("format") == format_1.FORMAT:
            old = format_1.OldJournal(self.directory, stated)
            if not self.write:
                reader.old, reader.shape, reader.dtype, self._log.length = old, old.shape, old.dtype, old.length
                return
            convert(old, self._expected or uuid.uuid4().hex)
            stated, problem = read_json_metadata(self.directory, scratch=self._scratch)
        metadata, problem = reconcile(self.directory, stated, problem, expected=self._expected, write=self.write)
        self._take(metadata)
        if problem and self.write:
            add_note(self.notes, f"{problem}; it was made anew")
            if metadata is not None:
                self._write_metadata()
        self._find_end()
        if self.write and self._log.inode:
            for name in format_1.FILES:  # of a conversion that ended before it had tidied up
                (self.directory / name).unlink(missing_ok=True)

    def _take(self, metadata: Metadata | None) -> None:
        self._metadata, self._reader.shape, self._log.tag = metadata, None, 0
        if metadata is not None:
            self._log.tag = tag_of(metadata["id"])
            if metadata.get("shape") is not None:
                self._reader.shape, self._reader.dtype = tuple(metadata["shape"]), np.dtype(metadata["dtype"])

    def _find_end(self) -> None:
        self._log.clear()
        if self._reader.shape is None:
            return
        path = self._log.path
        self.missing_log = not path.exists() or not path.stat().st_size
        if self.missing_log:
            add_note(self.notes, f"{path} is {'empty' if path.exists() else 'missing'}")
        else:
            self._log.find_end()

    # Reading.

    def __len__(self) -> int:
        return self._log.length

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one x, once there is one."""
        return self._reader.shape

    @property
    def path(self) -> Path | None:
        """The file that examples are appended to; None as long as there is none."""
        return self._log.path if self._log.inode else None

    @property
    def identity(self) -> str | None:
        """The id in all of its files."""
        return None if self._metadata is None else str(self._metadata["id"])

    @property
    def generation(self) -> int:
        """How often the journal was cut back, so that positions were used again."""
        return len(self._restarts)

    @property
    def _restarts(self) -> list[int]:
        return list((self._metadata or {}).get("restarts", []))

    def holds(self, generation: int, position: int) -> bool:
        """Whether the first `position` examples are still those that they were in an earlier generation."""
        return position <= min(self._restarts[generation:], default=position)

    def stamp(self, length: int) -> int | None:
        """The checksum of the last of the first `length` examples; None if there is none that can be read."""
        if not 0 < length <= len(self):
            return None
        ((_, example, _),) = self._reader.entries(length - 1, length)
        return None if example is None else zlib.crc32(example_payload(example))

    def refresh(self) -> int:
        """Picks up what another process has appended since; the length now."""
        if not self.write:
            with storage(self.directory):
                try:
                    size, inode = (status := self._log.path.stat()).st_size, status.st_ino
                except FileNotFoundError:
                    size = inode = -1
                replaced = inode != self._log.inode or size < self._log.end
                if self._reader.old is not None or self._reader.shape is None or replaced:
                    self._open()
                elif size > self._log.end:
                    self._find_end()
        return len(self)

    def _read(self, start: int, stop: int) -> Chunk:
        chunk, lost = self._reader.chunk(start, stop)
        if lost:
            position, reason = lost[0]
            raise BadInput(f"{self.directory}: example {position} is damaged: {reason}")
        return chunk

    def readable(self, start: int, stop: int) -> Chunk:
        """The examples start..stop-1 without those that are damaged or lost."""
        chunk, lost = self._reader.chunk(start, min(stop, len(self)))
        new = [(position, reason) for position, reason in lost if reason != LOST and position not in self._noted]
        if new and len(self._noted) < CACHED:
            self._noted.update(position for position, _ in new)
            which = ranges([position for position, _ in new])
            add_note(self.notes, f"{self.directory}: {which} damaged and left out: {new[0][1]}")
        return chunk

    def arrivals(self, start: int, stop: int) -> tuple[np.ndarray, list[str]]:
        """Of the examples start..stop-1 that can be read: how many labels had arrived when each was asked, and its id."""
        found = [
            entry.example for entry in self._reader.entries(start, min(stop, len(self))) if entry.example is not None
        ]
        return np.array([example.asked_at for example in found], np.int64), [example.id.decode() for example in found]

    def origins(self, start: int, stop: int) -> list[str]:
        """Where each of the examples start..stop-1 came from; empty where that is not known."""
        entries = self._reader.entries(start, min(stop, len(self)))
        return ["" if entry.example is None else entry.example.row.decode() for entry in entries]

    def damaged(self, start: int = 0, stop: int | None = None) -> list[tuple[int, str]]:
        """The positions that cannot be read, and why; everything is verified."""
        found: list[tuple[int, str]] = []
        stop = len(self) if stop is None else min(stop, len(self))
        for first in range(start, stop, BLOCK):
            found += self._reader.chunk(first, min(first + BLOCK, stop))[1]
        return found

    @property
    def known(self) -> list[Hashable]:
        """The labels that occur, in the order they first did; reads all of it."""
        labels: dict[Hashable, None] = {}
        for start in range(0, len(self), BLOCK):
            labels.update(dict.fromkeys(self.readable(start, start + BLOCK).y))
        return list(labels)

    def fingerprint(self) -> str:
        return self._reader.fingerprint()

    # Writing.

    def append(
        self,
        x: np.ndarray,
        y: Sequence[Hashable],
        *,
        asked_at: Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
        origins: Sequence[str] | None = None,
    ) -> None:
        """Adds examples at the end: all of them, or where something is raised, none.

        Parameters
        ----------
        x, y
            The examples and their labels.
        asked_at
            How many labels had arrived when each was predicted; by default all before it.
        ids
            By which labels came that are late; empty where there is none.
        origins
            Where each came from, in the words of whoever appends it; empty where that is not known.
        """
        self._check_writer()
        texts = [self._reader.labels.encode(label) for label in y]
        if len(texts) != len(x):
            raise BadInput(f"got {len(x)} inputs and {len(texts)} labels")
        log = self._log
        with storage(log.path):
            self._prepare(x)
            rows = np.ascontiguousarray(x, self._reader.dtype)
            log.append_examples(rows, texts, asked_at, _encoded(ids), _encoded(origins))

    def append_gap(self, count: int, like: np.ndarray | None = None) -> None:
        """Skips so many positions, whose examples are lost.

        Where there are no examples at all, `like` (1, ...) says what they look like.
        """
        self._check_writer()
        with storage(self._log.path):
            if like is not None and self._reader.shape is None:
                self._prepare(like)
            if not self._log.inode:
                self._create_log()
            while count:
                part = min(count, LONGEST_GAP)
                self._log.append_gap(part)
                count -= part
        self.sync()

    def mark(self) -> Mark:
        """The current end, for `rollback`."""
        return Mark(self._log.length, self._log.end)

    def rollback(self, mark: Mark) -> None:
        """Undoes what was appended since the mark; never fails."""
        self._log.rollback(mark)

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` examples."""
        if length > len(self):
            raise BadInput(f"the journal {self.directory} holds {len(self)} examples, expected at least {length}")
        if length == len(self):
            return
        self._check_writer()
        with storage(self._log.path):
            first, offset = self._log.locate(length)
            self._restart(length)
            self._log.truncate(Mark(first, offset))
        self.append_gap(length - first)

    def sync(self) -> None:
        """Makes everything appended so far survive a power cut."""
        if self._log.inode and not self._scratch:
            with storage(self._log.path):
                self._log.sync()

    def claim(self, identity: str) -> None:
        """Gives a new journal its id."""
        self._expected = identity
        if self._metadata is None:
            with storage(self.directory):
                self._take(new_metadata(identity))
                self._write_metadata()

    def compact(self, start: int) -> list[int]:
        """Closes the gaps from `start` on, so that later examples move up; returns the positions that were lost.

        What is damaged is copied to a file of its own first; the log is replaced atomically.
        """
        self._check_writer()
        lost = [position for position, _ in self.damaged(start)]
        if not lost:
            return []
        with storage(self.directory):
            earliest, offset = self._log.locate(start)
            self._restart(lost[0])
            assert self._metadata is not None
            close_gaps(self._log, self._metadata, start, earliest, offset)
        self._open()
        return lost

    def copy(self, directory: str | Path, *, identity: str | None = None, scratch: bool = False) -> None:
        """Writes a journal with the same examples to another directory, in place of what is there."""
        target = Path(directory)
        with storage(target):
            make_directory(target)
            for name in ("journal.json", "index.bin", "log.bin"):
                (target / name).unlink(missing_ok=True)
            if self._reader.shape is None:
                return
            make = plain_file if scratch else new_file
            if self._reader.old is None and identity in (None, self.identity):
                metadata = self._metadata or {}
                copy_log(self._log, target, make)
            else:
                metadata = new_metadata(identity or uuid.uuid4().hex, self._reader.shape, self._reader.dtype)
                write_log(target / "log.bin", metadata, self._reader.entries, len(self), make)
            if not scratch:
                write_sealed(target / "journal.json", metadata)

    def _check_writer(self) -> None:
        if not self.write:
            raise BadInput(f"the journal {self.directory} was opened to read; Journal(directory, write=True) appends")
        if os.getpid() != self._process:
            raise BadInput(
                f"this process was forked from the one that writes to {self.directory}: it may read, but not write"
            )
        if self._lock is not None:
            with storage(self.directory):
                self._lock.ensure()

    def _prepare(self, x: np.ndarray) -> None:
        """Makes the log for examples like these, or checks that they are like the others."""
        # a vector may be followed by one with fractions or larger numbers; images are all of a kind
        dtype = x.dtype if x.ndim > 2 and x.dtype in (np.uint8, np.float32) else FLOAT64
        if self._reader.shape is not None and (
            len(self) or (self._reader.shape, self._reader.dtype) == (x.shape[1:], dtype)
        ):
            if x.shape[1:] != self._reader.shape:
                raise BadInput(
                    f"x has shape {x.shape[1:]}, but the examples of {self.directory} have {self._reader.shape}"
                )
            if not self._log.inode:
                self._create_log()
            return
        before = self._metadata
        identity = self.identity or self._expected or uuid.uuid4().hex
        self._take({**new_metadata(identity, x.shape[1:], dtype), "restarts": self._restarts})
        try:
            self._create_log()
            self._write_metadata()
        except BaseException:
            self._take(before)
            raise

    def _create_log(self) -> None:
        assert self._metadata is not None
        self._log.create(metadata_record(self._metadata))

    def _write_metadata(self) -> None:
        assert self._metadata is not None
        if not self._scratch:
            write_sealed(self.directory / "journal.json", self._metadata)

    def _restart(self, position: int) -> None:
        """Records that positions from here on are used again, so that saves beyond it are not used."""
        assert self._metadata is not None
        self._metadata = {**self._metadata, "restarts": [*self._restarts, position]}
        self._write_metadata()

    def close(self) -> None:
        """Releases the lock, so that another writer can open it; reading still works."""
        if self.write and self._process == os.getpid():
            with contextlib.suppress(OSError):  # what is not in the index is found in the log
                self._log.index.flush()
        self.write = self._log.write = False
        if self._lock is not None:
            self._lock.free()

    def __reduce_ex__(self, protocol: object) -> Any:
        if self.write:
            raise BadInput(f"the journal {self.directory} is open to write and cannot be pickled or copied; use copy()")
        return Journal, (self.directory,)


def _encoded(texts: Sequence[str] | None) -> list[bytes] | None:
    return None if texts is None else [text.encode() for text in texts]


def _lock_place(directory: Path) -> Path:
    """What is locked: the home a journal is in, where it is in one."""
    return directory.parent if (directory.parent / "learner.json").exists() else directory
