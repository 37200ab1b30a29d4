"""Looking into the files of a journal, and damaging them."""

from __future__ import annotations

import os
from pathlib import Path

from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log_records import scan


def record_places(journal: Journal) -> dict[int, tuple[int, int]]:
    """Where the record of each position is in the log, and how long it is."""
    path = journal.directory / "log.bin"
    handle = os.open(path, os.O_RDONLY)
    found = [f for f in scan(handle, 0, path.stat().st_size, position=0, tag=journal._log.tag) if f.span]
    os.close(handle)
    return {f.position: (f.offset, f.size) for f in found}


def flip(path: Path, where: int) -> None:
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
