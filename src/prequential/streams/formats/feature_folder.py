"""Features extracted beforehand: a folder of .npy shards with a manifest, read through memory maps.

    manifest.json   what is there, of which source and network, how many images were skipped, a checksum per shard
    x-00000.npy     (rows, width) float16 or float32
    y-00000.npy     (rows,) int32 labels, or their numbers in the manifest's list when they are not whole numbers

A folder is opened by reading the manifest alone. `FeatureWriter` (in feature_writer.py) makes one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.labels import decode
from prequential.streams.formats.arrays import load_npy
from prequential.streams.formats.feature_shards import (
    check_content,
    check_shard,
    read_manifest,
    shards_hash,
)
from prequential.streams.limits import reading
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool


class FeatureStream(Stream):
    """The features and labels in a folder written by `FeatureWriter` or `prequential features`.

    A read maps its rows, copies them and closes the map, so memory does not grow with examples or readers.

    Parameters
    ----------
    directory
        The folder with manifest.json in it.

    Examples
    --------
    >>> import tempfile
    >>> from prequential.streams.formats.feature_writer import FeatureWriter
    >>> directory = tempfile.mkdtemp()
    >>> with FeatureWriter(directory, width=2) as writer:
    ...     writer.append(np.array([[0.5, 1.0], [2.0, 4.0]]), [7, 7])
    >>> stream = FeatureStream(directory)
    >>> len(stream), stream.read(1, 2).x.tolist(), stream.read(1, 2).y
    (2, [[2.0, 4.0]], [7])
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        if not self.manifest["complete"]:
            raise BadInput(
                f"{self.directory} is not finished: {self.manifest['position']} examples of its source were handled; "
                "start the same extraction again and it goes on from there"
            )
        self.dtype = np.dtype(self.manifest["dtype"])
        self.width = int(self.manifest["width"])
        self._shards: list[dict[str, Any]] = self.manifest["shards"]
        self._starts = np.cumsum([0] + [int(shard["rows"]) for shard in self._shards])
        if int(self._starts[-1]) != self.manifest["rows"]:
            raise BadInput(
                f"{self.directory}: the shards have {self._starts[-1]} rows, expected {self.manifest['rows']}"
            )
        given = self.manifest["classes"]
        with reading(self.directory / "manifest.json", "is damaged"):
            listed = self.manifest["labels"]
            self._labels = None if listed is None else [decode(code) for code in listed]
            # only what was declared: the labels that occur are known when the last of them has come
            self.classes = [decode(code) for code in given] if isinstance(given, list) else given
            self.skipped = int(self.manifest.get("skipped", 0))  # images that could not be used
        self._checksums = {shard[kind]: shard.get(f"{kind}_sha256") for shard in self._shards for kind in ("x", "y")}
        self._offsets: dict[str, int] = {}  # where the numbers begin in the shards looked at so far

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _hash(self) -> str:
        known = {name: self.manifest[name] for name in ("rows", "width", "dtype", "labels", "shards")}
        shards = shards_hash([self.directory / shard[kind] for shard in self._shards for kind in ("x", "y")])
        return hashlib.sha256(f"{json.dumps(known, sort_keys=True)} {shards}".encode()).hexdigest()[:32]

    def fingerprint(self) -> str:
        """A hash of the manifest with its checksums, and of each shard's size and content.

        Of folders larger than 64 MiB, 4 pieces of each shard are hashed; `verify` reads all and compares the checksums.
        """
        return self._hash

    def task_starts(self) -> np.ndarray | None:
        path = self.directory / "task_starts.npy"  # kept where the images came in tasks
        if not path.is_file() and "task_starts" not in self.manifest.get("columns", {}):
            return None
        check_content(path, self.manifest.get("columns", {}).get("task_starts"))
        starts = load_npy(path)
        if starts.ndim != 1 or starts.dtype.kind not in "iu":
            raise BadInput(
                f"{path} is {starts.dtype.str} {starts.shape}, expected the place of the first example of each task"
            )
        return np.array(starts)

    def pool(self) -> tuple[Pool, np.ndarray]:
        """All rows by position, read on demand, and their labels: what `SplitStream` takes."""
        numbers = [
            self._part(shard["y"], np.dtype(np.int32), (int(shard["rows"]),), 0, int(shard["rows"]))
            for shard in self._shards
        ]
        y = np.concatenate(numbers)
        if self._labels is None:
            return Pool(self, self._take), y
        names = np.empty(len(y), object)
        names[:] = self._names(y, 0)
        return Pool(self, self._take), names.astype(str) if all(
            isinstance(name, str) for name in self._labels
        ) else names

    def _take(self, positions: np.ndarray) -> np.ndarray:
        """The features of these rows, in this order."""
        x = np.empty((len(positions), self.width), self.dtype)
        shards = np.searchsorted(self._starts, positions, side="right") - 1
        for i in np.unique(shards):
            name, rows = self._shards[i]["x"], int(self._shards[i]["rows"])
            offset = self._offset(name, self.dtype, (rows, self.width))
            # no map: for single rows the system would read many more around each, which takes fifty times as long
            with (self.directory / name).open("rb", buffering=0) as file:
                for place in np.flatnonzero(shards == i):
                    file.seek(offset + int(positions[place] - self._starts[i]) * x[place].nbytes)
                    file.readinto(x[place].data)  # a row of a shard whose size was checked
        self._check(x, positions)
        return x

    def verify(self) -> None:
        """Reads every shard and compares it with its checksum; takes as long as reading the disk does."""
        for name, expected in self._checksums.items():
            check_content(self.directory / name, expected)

    def _read(self, start: int, stop: int) -> Chunk:
        with reading(self.directory):
            return self._rows(start, stop)

    def _rows(self, start: int, stop: int) -> Chunk:
        xs, ys = [], []
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left")) - 1
        for i in range(first, last + 1):
            begin = int(self._starts[i])
            low, high = max(start - begin, 0), min(stop, int(self._starts[i + 1])) - begin
            rows = int(self._shards[i]["rows"])
            xs.append(self._part(self._shards[i]["x"], self.dtype, (rows, self.width), low, high))
            ys.append(self._part(self._shards[i]["y"], np.dtype(np.int32), (rows,), low, high))
        x, y = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in (xs, ys))
        self._check(x, np.arange(start, stop))
        return Chunk(x, self._names(y, start))

    def _check(self, x: np.ndarray, positions: np.ndarray) -> None:
        wrong = ~np.isfinite(x)
        if wrong.any():
            row, feature = (int(i) for i in np.argwhere(wrong)[0])
            raise BadInput(
                f"{self.directory}, example {positions[row]}: feature {feature} is {x[row, feature]}, expected "
                "a finite number"
            )

    def _names(self, y: np.ndarray, start: int) -> list[Hashable]:
        """The labels that these numbers mean."""
        numbers: list[Hashable] = y.tolist()
        if self._labels is None:
            return numbers
        wrong = np.flatnonzero((y < 0) | (y >= len(self._labels)))
        if len(wrong):
            raise BadInput(
                f"{self.directory}, example {start + wrong[0]}: the label has number {y[wrong[0]]}, expected one in "
                f"0..{len(self._labels) - 1}, as manifest.json lists {len(self._labels)} labels"
            )
        return [self._labels[number] for number in y.tolist()]

    def _part(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """A copy of rows low..high-1 of a shard."""
        row = dtype.itemsize * math.prod(shape[1:])
        offset = self._offset(name, dtype, shape) + low * row
        mapped = np.memmap(self.directory / name, np.uint8, "r", offset, (high - low) * row)
        return np.array(mapped).view(dtype).reshape(high - low, *shape[1:])

    def _offset(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
        if name not in self._offsets:
            offset = check_shard(self.directory / name, dtype, shape)
            check_content(self.directory / name, self._checksums[name])  # once, before anything in it is used
            self._offsets[name] = offset
        return self._offsets[name]
