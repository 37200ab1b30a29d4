"""What is kept beside the features: which images were skipped and why, and what else is known of the others.

    skipped.jsonl     a line for each skipped image: its position in the source and what is wrong with it
    position.npy      (rows,) int64, the position in the source that each row of features comes from
    time.npy, ...     (rows,) what the source knows of its examples besides the label: CLOC has time and user
    task_starts.npy   the rows at which tasks begin, where the source knows tasks

The arrays are written from the source and skipped.jsonl when all features are there, before the folder counts as finished.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from prequential.errors import BadInput
from prequential.features.records import Records, plain
from prequential.files import sync_directory

ROWS = 1 << 18  # handled at once


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
    """

    def __init__(self, directory: Path, position: int, skipped: int) -> None:
        self.path = directory / "skipped.jsonl"
        self.file: BinaryIO = self.path.open("r+b" if self.path.exists() else "w+b")
        found, end = 0, 0
        for line in self.file:
            if not _position(line) < position:
                break
            found, end = found + 1, end + len(line)
        if found != skipped:
            self.file.close()
            raise BadInput(
                f"{self.path} lists {found} skipped images, expected {skipped}; delete {directory} to extract anew"
            )
        self.file.truncate(end)
        self.file.seek(end)

    def add(self, bad: dict[int, str]) -> None:
        """Writes down images that are skipped, in the order of their positions."""
        for position, reason in sorted(bad.items()):
            entry = {"position": position, "reason": plain(reason)}
            self.file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self.file.flush()

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


def keep_columns(directory: Path, source: Records, rows: int) -> None:
    """Writes the arrays that lie beside the features, those that are not there yet."""
    columns = getattr(source, "columns", None)
    kinds = {"position": np.dtype(np.int64)}
    kinds |= {name: array.dtype for name, array in (columns(0, 1) if columns else {}).items()}
    starts = source.task_starts() if hasattr(source, "task_starts") else None
    missing = [name for name in kinds if not (directory / f"{name}.npy").exists()]
    todo_starts = starts is not None and not (directory / "task_starts.npy").exists()
    if not missing and not todo_starts:
        return
    temporary = {name: directory / f".{name}.npy.tmp" for name in missing}
    arrays = {
        name: np.lib.format.open_memmap(path, mode="w+", dtype=kinds[name], shape=(rows,))
        for name, path in temporary.items()
    }
    bad, coming = skipped_positions(directory), -1
    done, new_starts = 0, []
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
        if columns and missing != ["position"]:
            found |= {name: array[good - low] for name, array in columns(low, high).items()}
        for name, array in arrays.items():
            array[done : done + len(good)] = found[name]
        done += len(good)
    if done != rows:
        raise BadInput(f"{directory} has {rows} rows, and {done} images of its source were not skipped")
    for array in arrays.values():
        array.flush()
    arrays.clear()
    if todo_starts:
        temporary["task_starts"] = directory / ".task_starts.npy.tmp"
        with temporary["task_starts"].open("wb") as file:
            np.save(file, np.array([start for start in dict.fromkeys(new_starts) if start < rows], np.int64))
    for name, path in temporary.items():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(directory / f"{name}.npy")
    sync_directory(directory)
