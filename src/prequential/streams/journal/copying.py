"""Making one log out of another: under another id, in the current format, or without its gaps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from prequential.storage.files import new_file, opened, sync_directory, write_all
from prequential.storage.sealed import write_sealed
from prequential.streams.journal.format_1 import FILES, OldJournal
from prequential.streams.journal.log import WRITE, Log
from prequential.streams.journal.log_records import (
    EXAMPLE,
    copy_bytes,
    example_payload,
    gap,
    read_example,
    record,
    scan,
    tag_of,
)
from prequential.streams.journal.metadata import Metadata, metadata_record, new_metadata
from prequential.streams.journal.reading import Entry

BLOCK = 1024  # examples read at a time

# What makes a file and gives a handle on it.
Maker = Callable[[Path], AbstractContextManager[int]]


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[int]:
    """A new file that need not survive anything; `new_file` makes one that must."""
    with opened(path, WRITE | os.O_CREAT | os.O_TRUNC) as handle:
        yield handle


def copy_log(log: Log, directory: Path, make: Maker) -> None:
    """Copies a log and its index, byte by byte."""
    with log.reading() as source, make(directory / "log.bin") as target:
        copy_bytes(source, target, 0, log.end)
    log.index.copy(directory / "index.bin", log.length)


def write_log(
    path: Path, metadata: Metadata, entries: Callable[[int, int], list[Entry]], length: int, make: Maker = new_file
) -> None:
    """Writes examples as a log with this metadata; what cannot be read becomes a gap.

    Parameters
    ----------
    path
        The file to write.
    metadata
        What the new journal says about itself.
    entries
        Reads the examples start..stop-1.
    length
        How many there are.
    make
        Makes the file.
    """
    tag = tag_of(metadata["id"])
    with make(path) as handle:
        write_all(handle, metadata_record(metadata))
        for start in range(0, length, BLOCK):
            records = [
                gap(tag, position, 1) if example is None else record(EXAMPLE, tag, position, example_payload(example))
                for position, example, _ in entries(start, min(start + BLOCK, length))
            ]
            write_all(handle, b"".join(records))


def close_gaps(log: Log, metadata: Metadata, start: int, earliest: int, offset: int) -> None:
    """Replaces a log by one in which the examples from `start` on follow each other without gaps.

    The bytes of damaged examples are copied to files of their own first; the log is replaced atomically.

    Parameters
    ----------
    log
        The log to replace.
    metadata
        What the new one begins with.
    start
        The position from which on gaps are closed.
    earliest, offset
        The first position that the record of `start` stands for, and where that record begins.
    """
    with log.reading() as handle, new_file(log.path) as target:
        write_all(target, metadata_record(metadata))
        first = next(scan(handle, 0, log.end, position=0, tag=log.tag), None)
        copy_bytes(handle, target, first.size if first is not None and not first.span else 0, offset)
        if earliest < start:
            write_all(target, gap(log.tag, earliest, start - earliest))
        position = start
        for found in scan(handle, offset, log.end, position=earliest, tag=log.tag):
            if found.header is None:
                log.set_aside(handle, found.offset, found.size, found.position)
            elif found.header.kind == EXAMPLE and (example := read_example(found.payload)) is not None:
                moved = example._replace(asked_at=max(0, example.asked_at - (found.position - position)))
                write_all(target, record(EXAMPLE, log.tag, position, example_payload(moved)))
                position += 1


def convert(old: OldJournal, identity: str) -> None:
    """Converts a journal of the first format; the old files are removed once the new ones are synced."""
    metadata = new_metadata(identity, old.shape, old.dtype)
    (old.directory / "index.bin").unlink(missing_ok=True)
    write_log(old.directory / "log.bin", metadata, old.entries, old.length)
    write_sealed(old.directory / "journal.json", metadata)
    for name in FILES:
        (old.directory / name).unlink(missing_ok=True)
    sync_directory(old.directory)
