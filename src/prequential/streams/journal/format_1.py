"""Reading journals as version 0.1.0 wrote them: `x.bin`, `y.bin`, `labels.jsonl` and no checksums."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.labels import label_text, read_label
from prequential.storage.sealed import read_small
from prequential.streams.journal.log_records import Example
from prequential.streams.journal.reading import Entry

FORMAT = "prequential-journal-1"
FILES = ("x.bin", "y.bin", "labels.jsonl")
BLOCK = 4096  # examples read at a time


class OldJournal:
    """One fixed-size record an example in each of two files; labels are numbers of lines in a third."""

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        self.directory = directory
        try:
            self.shape = tuple(int(length) for length in meta["shape"])
            self.dtype = np.dtype(str(meta["dtype"]))
        except (KeyError, TypeError, ValueError):
            raise BadCheckpoint(f"{directory / 'journal.json'} is damaged: it names no shape and dtype") from None
        self.record = math.prod(self.shape) * self.dtype.itemsize
        if self.dtype.kind not in "fiub" or self.record < 1 or not 1 <= len(self.shape) <= 3:
            raise BadCheckpoint(f"{directory / 'journal.json'} is damaged: shape {self.shape}, dtype {self.dtype}")
        self._labels = self._read_labels()
        length = min(self._size("x.bin") // self.record, self._size("y.bin") // 4)
        # at the end, a label whose name was not written is a write that was cut off
        slots = self._array("y.bin", np.dtype(np.int32), max(0, length - BLOCK), length)
        while length and len(slots) and self._name(int(slots[-1])) is None:
            slots, length = slots[:-1], length - 1
        self.length = length

    def entries(self, start: int, stop: int) -> list[Entry]:
        """The examples start..stop-1, as the current format has them."""
        return [
            Entry(position, None, "its label is missing")
            if label is None
            else Entry(position, Example(position, x.tobytes(), label_text(label[0]).encode(), b"", b""), "")
            for position, x, label in self._read(start, stop)
        ]

    def _read(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray, tuple[Hashable] | None]]:
        """Position, x and (label,) of the examples; None where the label is not to be found."""
        for first in range(start, stop, BLOCK):
            last = min(first + BLOCK, stop)
            x = self._array("x.bin", self.dtype, first, last, math.prod(self.shape)).reshape(-1, *self.shape)
            slots = self._array("y.bin", np.dtype(np.int32), first, last).tolist()
            for i, slot in enumerate(slots):
                yield first + i, x[i], self._name(slot)

    def _name(self, slot: int) -> tuple[Hashable] | None:
        return self._labels[slot] if 0 <= slot < len(self._labels) else None

    def _read_labels(self) -> list[tuple[Hashable] | None]:
        path = self.directory / "labels.jsonl"
        if not path.exists():
            if self._size("y.bin"):
                raise BadCheckpoint(f"{path} is missing: the labels of all examples are in it")
            return []
        names: list[tuple[Hashable] | None] = []
        whole = read_small(path)
        for line in whole[: whole.rfind(b"\n") + 1].splitlines():
            try:
                names.append((read_label(line),))
            except BadCheckpoint:
                names.append(None)
        return names

    def _size(self, name: str) -> int:
        path = self.directory / name
        if path.is_symlink():
            raise BadCheckpoint(f"{path} is a symbolic link, expected a file")
        return path.stat().st_size if path.is_file() else 0

    def _array(self, name: str, dtype: np.dtype[Any], start: int, stop: int, width: int = 1) -> np.ndarray:
        if start >= stop:
            return np.empty(0, dtype)
        with open(self.directory / name, "rb") as file:
            file.seek(start * width * dtype.itemsize)
            return np.frombuffer(file.read((stop - start) * width * dtype.itemsize), dtype)
