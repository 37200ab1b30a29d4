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
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.features.image_records import Records, check_still_there, plain
from prequential.storage.files import new_file, open_own, sync_directory, write_all
from prequential.streams.formats.feature_shards import checksum, npy_header
from prequential.streams.formats.feature_writer import SKIPPED

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
        self.path = directory / SKIPPED
        self._handle: int | None = open_own(self.path, os.O_RDWR | os.O_CREAT)
        found, self._end, self._hash = 0, 0, hashlib.sha256()
        with os.fdopen(self._handle, "rb", closefd=False) as file:
            for line in file:
                if not _position(line) < position:
                    break
                found, self._end = found + 1, self._end + len(line)
                self._hash.update(line)
        if found != skipped or (checksum is not None and self.checksum != checksum):
            self.close()
            raise BadList(
                f"{self.path} is damaged: it lists {found} skipped images, expected {skipped}; delete {directory} to "
                "extract anew"
            )
        os.ftruncate(self._handle, self._end)
        sync_directory(directory)  # its name, if it is new

    def add(self, bad: dict[int, str]) -> None:
        """Writes down images that are skipped, in the order of their positions."""
        assert self._handle is not None
        lines = _entries(bad)
        write_all(self._handle, lines, self._end)
        self._hash.update(lines)
        self._end += len(lines)

    @property
    def checksum(self) -> str:
        """The SHA-256 of all entries."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Makes the entries survive a power cut."""
        assert self._handle is not None
        os.fsync(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _entries(bad: dict[int, str]) -> bytes:
    """The lines for images that are skipped, in the order of their positions."""
    entries = [{"position": position, "reason": plain(reason)} for position, reason in sorted(bad.items())]
    return b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries)


def make_list_again(
    directory: Path, source: Records, position: int, skipped: int, checksum: str | None, batch: int
) -> None:
    """Writes the list of skipped images by trying all up to a position once more.

    What would not be the list that was there before is refused, and the file stays as it is.
    """
    path, found, digest = directory / SKIPPED, 0, hashlib.sha256()
    with new_file(path) as handle:
        for start in range(0, position, batch):
            _, labels, bad = source.attempt(start, min(start + batch, position))
            if bad and not len(labels):
                check_still_there(source)
            lines, found = _entries(bad), found + len(bad)
            write_all(handle, lines)
            digest.update(lines)
        if found != skipped or (checksum is not None and digest.hexdigest() != checksum):
            what = "for other reasons" if found == skipped else f"expected {skipped}"
            raise BadList(
                f"{path} is damaged, and of its source {found} images cannot be used now, {what}; "
                f"delete {directory} to extract anew"
            )


def _position(line: bytes) -> float:
    """The position in an entry; beyond all positions for one that was cut off."""
    try:
        return int(json.loads(line)["position"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


def skipped_positions(directory: str | Path) -> Iterator[int]:
    """The positions in the source of the images that were skipped, in order."""
    with (Path(directory) / SKIPPED).open("rb") as file:
        for line in file:
            yield int(json.loads(line)["position"])


def first_reason(directory: Path) -> str:
    """What is wrong with the first image that was skipped."""
    with (directory / SKIPPED).open("rb") as file:
        return str(json.loads(file.readline())["reason"])


def damaged_files(directory: Path, checksums: dict[str, str]) -> list[Path]:
    """Those of some files that are not there or do not have their checksum."""
    return [directory / name for name, expected in checksums.items() if not _has(directory / name, expected)]


def _has(path: Path, expected: str) -> bool:
    try:
        return checksum(path) == expected
    except OSError:
        return False


def keep_columns(directory: Path, source: Records, rows: int, expected: dict[str, str] | None = None) -> dict[str, str]:
    """Writes the arrays that lie beside the features; the checksum of each.

    Where they were there before, their checksums are `expected`: others are refused, and the files stay as they are.
    """
    columns = getattr(source, "columns", None)
    kinds = {"position": np.dtype(np.int64)}
    kinds |= {name: array.dtype for name, array in (columns(0, 1) if columns else {}).items()}
    starts = source.task_starts() if hasattr(source, "task_starts") else None
    with ExitStack() as opened:  # the new files take their places when it is closed
        arrays = {
            name: _NewArray(opened.enter_context(new_file(directory / f"{name}.npy")), kind, rows)
            for name, kind in kinds.items()
        }
        new_starts = _fill(arrays, directory, source, rows, starts, columns)
        if starts is not None:
            kept = np.array([start for start in dict.fromkeys(new_starts) if start < rows], np.int64)
            handle = opened.enter_context(new_file(directory / "task_starts.npy"))
            arrays["task_starts"] = _NewArray(handle, kept.dtype, len(kept))
            arrays["task_starts"].append(kept)
        checksums = {name: array.hash.hexdigest() for name, array in arrays.items()}
        for name in () if expected is None else {**expected, **checksums}:
            if expected is not None and expected.get(name) != checksums.get(name):
                raise BadInput(
                    f"{directory}: {name}.npy cannot be made again, as its source has another {name} now; "
                    f"delete {directory} to extract anew"
                )
    return checksums


class _NewArray:
    """An .npy file that is written piece by piece."""

    def __init__(self, handle: int, dtype: np.dtype[Any], rows: int) -> None:
        self.handle, self.dtype = handle, dtype
        self.hash = hashlib.sha256()
        self._write(npy_header(dtype, (rows,)))

    def append(self, values: np.ndarray) -> None:
        self._write(np.asarray(values, self.dtype).tobytes())

    def _write(self, data: bytes) -> None:
        write_all(self.handle, data)
        self.hash.update(data)


def _fill(
    arrays: dict[str, _NewArray],
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
            array.append(found[name])
        done += len(good)
    if done != rows:
        raise BadInput(f"{directory} has {rows} rows, and {done} images of its source were not skipped")
    return new_starts
