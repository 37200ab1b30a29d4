"""The metadata of a journal: `journal.json`, with a copy as the first record of the log."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.storage.files import opened
from prequential.storage.sealed import read_sealed
from prequential.streams.journal import format_1
from prequential.streams.journal.log_records import HEAD, META, Window, read_header, record, tag_of

FORMAT = "prequential-journal-2"
LONGEST = 1 << 16  # bytes of metadata in a log

Metadata = dict[str, Any]  # format, id, restarts, shape, dtype


def new_metadata(identity: str, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None) -> Metadata:
    """The metadata of a new journal; shape and dtype are those of one x, once there is one."""
    return {
        "format": FORMAT,
        "id": identity,
        "restarts": [],
        "shape": None if shape is None else list(shape),
        "dtype": None if dtype is None else str(dtype),
    }


def check_metadata(metadata: Any, name: str) -> None:
    """Refuses what does not describe a journal."""
    try:
        shape, good = metadata["shape"], isinstance(metadata["id"], str) and metadata["format"] == FORMAT
        good = good and all(isinstance(position, int) for position in metadata["restarts"])
        if shape is not None:
            good = good and 1 <= len(shape) <= 3 and all(isinstance(n, int) and 1 <= n < 1 << 31 for n in shape)
            good = good and metadata["dtype"] in ("float64", "float32", "uint8")
    except (KeyError, TypeError):
        good = False
    if not good:
        raise BadCheckpoint(f"{name} is damaged: it does not describe a journal")


def metadata_record(metadata: Metadata) -> bytes:
    """The first record of a log."""
    return record(META, tag_of(metadata["id"]), 0, json.dumps(metadata).encode())


def read_json_metadata(directory: Path, *, scratch: bool = False) -> tuple[Metadata | None, str]:
    """What `journal.json` says, and what is wrong with it."""
    path, log = directory / "journal.json", directory / "log.bin"
    old_files = any((directory / name).exists() for name in format_1.FILES)
    if not path.exists() and not path.is_symlink():
        if not log.exists() and old_files:
            raise BadCheckpoint(f"{path} is missing: it says how to read the other files in {directory}")
        return None, "" if scratch or not log.exists() else f"{path} is missing"
    try:
        metadata = read_sealed(path)
        if metadata.get("format") == FORMAT:
            check_metadata(metadata, str(path))
        return metadata, ""
    except BadCheckpoint as error:
        if path.is_symlink() or old_files:
            raise
        return None, str(error)


def read_log_metadata(log: Path) -> Metadata | None:
    """What the first record of a log says; None if that cannot be read."""
    if log.is_symlink():
        raise BadInput(f"{log} is a symbolic link, expected a file")
    if not log.is_file():
        return None
    with opened(log, os.O_RDONLY) as handle:
        window = Window(handle, os.fstat(handle).st_size, 4096)
        header = read_header(window.get(0, HEAD))
        if header is None or header.kind != META or header.length > LONGEST:
            return None
        payload = window.get(HEAD, header.length)
    if zlib.crc32(payload) != header.crc:
        return None
    try:
        metadata: Metadata = json.loads(payload)
        check_metadata(metadata, str(log))
    except (ValueError, BadCheckpoint):
        return None
    return metadata


def reconcile(
    directory: Path, stated: Metadata | None, problem: str, *, expected: str | None, write: bool
) -> tuple[Metadata | None, str]:
    """The valid metadata where `journal.json` and the log may disagree, and why `journal.json` must be rewritten.

    Parameters
    ----------
    directory
        That of the journal.
    stated, problem
        What `journal.json` says, and what is wrong with it.
    expected
        The id that the journal must have, if that is known.
    write
        Whether the journal is opened to write.
    """
    path, log = directory / "journal.json", directory / "log.bin"
    if stated is not None and stated.get("format") != FORMAT:
        raise BadInput(f"{path} has format {str(stated.get('format'))[:40]!r}, expected {FORMAT!r}")
    logged = read_log_metadata(log)
    if logged is not None and stated is not None and stated["id"] != logged["id"]:
        if expected is not None and logged["id"] != expected:
            raise BadInput(f"{log} belongs to another learner: its id is {logged['id'][:40]}, expected {expected}")
        if expected is None and stated.get("shape") is not None:
            raise BadInput(f"{path} and {log.name} belong to two journals: {stated['id'][:40]} and {logged['id'][:40]}")
        stated, problem = None, f"{path} belonged to another journal"  # the log is what holds the examples
    if logged is None and stated is None and log.exists() and log.stat().st_size >= HEAD:
        raise BadCheckpoint(
            f"{problem or log}; the beginning of {log} is damaged too, so that its examples cannot be read"
        )
    if problem and logged is None and not write:  # nothing else says what was here
        raise BadCheckpoint(problem)
    metadata = stated if stated is not None and stated.get("shape") is not None else logged or stated
    if expected is not None and metadata is not None and metadata["id"] != expected:
        raise BadInput(f"{directory} belongs to another learner: its id is {metadata['id'][:40]}")
    return metadata, problem
