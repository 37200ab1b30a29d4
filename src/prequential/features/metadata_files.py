"""What is kept beside the features: which images were skipped and why, and what else is known of the others.

    skipped.jsonl     a line for each skipped image: its position in the source and what is wrong with it
    position.npy      (rows,) int64, the position in the source that each row of features comes from
    time.npy, ...     (rows,) what the source knows of its examples besides the label: CLOC has time and user
    task_starts.npy   the rows at which tasks begin, where the source knows tasks

The arrays are written from the source and skipped.jsonl when all features are there, before the folder counts as
finished.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prequential.errors import BadInput
from prequential.features.image_records import Records, plain
from prequential.storage.files import new_file, open_own, write_atomically
from prequential.streams.formats.feature_shards import checksum

ROWS = 1 << 18  # handled at once


class BadList(BadInput):
    """A list of skipped images that is not the one that was written."""


class SkippedList:
    """The file skipped.jsonl while features are written; entries from `position` on are forgotten when it is opened.

    The features' manifest says how far everything is. So an entry must be on disk before the manifest that counts it,
    and what an interrupted process wrote after its last manifest is written again.

    Parameters
    ----------
    directory
        The folder of the features.
    position
        How many images of the source the features' manifest counts as handled.
    skipped
        How many of these it counts as skipped.
    checksum
        The SHA-256 of their entries, if it knows it.
    """

    def __init__(self, directory: Path, position: int, skipped: int, checksum: str | None = None) -> None:
        self.path = directory / "skipped.jsonl"
        self.file: BinaryIO = os.fdopen(open_own(self.path, os.O_RDWR | os.O_CREAT), "r+b")
        found, end, self._hash = 0, 0, hashlib.sha256()
        for line in self.file:
            if not _position(line) < position:
                break
            found, end = found + 1, end + len(line)
            self._hash.update(line)
        if found != skipped or (checksum is not None and self.checksum != checksum):
            self.file.close()
            raise BadList(
                f"{self.path} is damaged: it lists {found} skipped images, expected {skipped}; delete {directory} to "
                "extract anew"
            )
        self.file.truncate(end)
        self.file.seek(end)

    def add(self, bad: dict[int, str]) -> None:
        """Writes down images that are skipped, in the order of their positions."""
        for position, reason in sorted(bad.items()):
            entry = {"position": position, "reason": plain(reason)}
            line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
            self._hash.update(line)
            self.file.write(line)
        self.file.flush()

    @property
    def checksum(self) -> str:
        """The SHA-256 of all entries."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Makes the entries survive a power cut."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def _position(line: bytes) -> float:
    """The position in an entry; beyond all positions for one that was cut off."""
    try:
        return int(json.loads(line)["position"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


def skipped_positions(directory: str | Path) -> Iterator[int]:
    """The positions in the source of the images that were skipped, in order."""
    with (Path(directory) / "skipped.jsonl").open("rb") as file:
        for line in file:
            yield int(json.loads(line)["position"])


def first_reason(directory: Path) -> str:
    """What is wrong with the first image that was skipped."""
    with (directory / "skipped.jsonl").open("rb") as file:
        return str(json.loads(file.readline())["reason"])


def keep_columns(directory: Path, source: Records, rows: int) -> dict[str, str]:
    """Writes the arrays that lie beside the features; the checksum of each."""
    columns = getattr(source, "columns", None)
    kinds = {"position": np.dtype(np.int64)}
    kinds |= {name: array.dtype for name, array in (columns(0, 1) if columns else {}).items()}
    starts = source.task_starts() if hasattr(source, "task_starts") else None
    with ExitStack() as opened:
        arrays = {name: _new_array(directory / f"{name}.npy", kind, rows, opened) for name, kind in kinds.items()}
        new_starts = _fill(arrays, directory, source, rows, starts, columns)
        for array in arrays.values():
            array.flush()
        arrays.clear()
        if starts is not None:
            kept = np.array([start for start in dict.fromkeys(new_starts) if start < rows], np.int64)
            data = io.BytesIO()
            np.save(data, kept)
            write_atomically(directory / "task_starts.npy", data.getvalue())
    names = [*kinds, *(["task_starts"] if starts is not None else [])]
    return {name: checksum(directory / f"{name}.npy") for name in names}


def _new_array(path: Path, kind: np.dtype[Any], rows: int, opened: ExitStack) -> np.memmap[Any, Any]:
    """An array in a new file, which takes its place when all that was opened is closed."""
    handle = opened.enter_context(new_file(path))
    file = opened.enter_context(os.fdopen(handle, "r+b", closefd=False))
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)
    start = file.tell()
    file.truncate(start + rows * kind.itemsize)
    return np.memmap(file, kind, "r+", start, (rows,))


def _fill(
    arrays: dict[str, np.memmap[Any, Any]],
    directory: Path,
    source: Records,
    rows: int,
    starts: np.ndarray | None,
    columns: Callable[[int, int], dict[str, np.ndarray]] | None,
) -> list[int]:
    """Fills the arrays; where tasks begin among the rows."""
    new_starts: list[int] = []
    bad, coming = skipped_positions(directory), -1
    done = 0
    for low in range(0, len(source), ROWS):
        high = min(low + ROWS, len(source))
        here = []
        while coming < high:
            if coming >= low:
                here.append(coming)
            coming = next(bad, len(source))
        good = np.delete(np.arange(low, high), np.array(here, np.int64) - low)
        if starts is not None:
            inside = starts[(starts >= low) & (starts < high)]
            new_starts += (done + np.searchsorted(good, inside)).tolist()
        found = {"position": good}
        if columns:
            found |= {name: array[good - low] for name, array in columns(low, high).items()}
        for name, array in arrays.items():
            array[done : done + len(good)] = found[name]
        done += len(good)
    if done != rows:
        raise BadInput(f"{directory} has {rows} rows, and {done} images of its source were not skipped")
    return new_starts
