"""Features extracted beforehand: a folder of .npy shards with a manifest, read through memory maps.

    manifest.json   what is there, of which source and network, how many images were skipped, a checksum per shard
    x-00000.npy     (rows, width) float16 or float32
    y-00000.npy     (rows,) int32 labels, or their numbers in the manifest's list when they are not whole numbers

A folder is opened by reading the manifest alone. `FeatureWriter` makes one and goes on after any interruption.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.labels import decode, encode
from prequential.storage.files import make_directory, open_own, remove_temporaries, sync_directory
from prequential.storage.sealed import read_json, write_sealed
from prequential.streams.formats.arrays import load_npy
from prequential.streams.formats.feature_shards import (
    FORMAT,
    check_content,
    check_shard,
    checksum,
    lock,
    read_manifest,
    shards_hash,
    write_shard,
)
from prequential.streams.limits import reading
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool

COPY = ".manifest.json.copy"


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
        for shard in self._shards:
            for kind in ("x", "y"):
                found = checksum(self.directory / shard[kind])
                if found != shard[f"{kind}_sha256"]:
                    raise BadInput(
                        f"{shard[kind]} has checksum {found[:12]}…, expected {shard[f'{kind}_sha256'][:12]}…"
                    )

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


class FeatureWriter:
    """Writes a folder of features piece by piece; after an interruption, even a power cut, it goes on from `position`.

    However often it was interrupted, the finished files are the same to the last bit, provided the same pieces are
    appended. What was appended since the last `commit` or closed shard is forgotten by an interruption.

    Parameters
    ----------
    directory
        The folder; made if it is not there, gone on with if it holds an unfinished store of the same settings.
    width
        How many features a row has.
    dtype
        "float16" or "float32".
    rows_per_shard
        A shard is closed with the piece that gives it this many rows.
    classes
        How many labels there can be, or which, where that is known.
    about
        What the features are of: source, network and the like, as JSON values. Another one is refused on going on.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        width: int,
        dtype: str = "float16",
        rows_per_shard: int = 65536,
        classes: int | Sequence[Hashable] | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        if dtype not in ("float16", "float32"):
            raise BadSetting(f"dtype is {dtype!r}, expected 'float16' or 'float32'")
        if width < 1 or rows_per_shard < 1:
            raise BadSetting(f"width ({width}) and rows_per_shard ({rows_per_shard}) must be at least 1")
        self.directory = Path(directory)
        settings: dict[str, Any] = {
            "format": FORMAT,
            "width": width,
            "dtype": dtype,
            "rows_per_shard": rows_per_shard,
            "classes": classes if isinstance(classes, int | None) else [encode(label) for label in classes],
            "about": about or {},
        }
        progress: dict[str, Any] = {"rows": 0, "position": 0, "skipped": 0, "part": 0, "labels": None, "shards": []}
        self.manifest: dict[str, Any] = {**settings, **progress, "complete": False}
        self._restore_manifest()
        if (self.directory / "manifest.json").exists():
            self.manifest = read_manifest(self.directory)
            begun = {**self.manifest, **self.manifest["about"]}
            for name, value in {**settings, **settings["about"]}.items():
                if name != "about" and begun.get(name) != value:
                    raise BadSetting(f"{self.directory} was begun with {name} {begun.get(name)!r}, not {value!r}")
        else:
            make_directory(self.directory)
        self._known = {decode(code): i for i, code in enumerate(self.manifest["labels"] or [])}
        self._parts: tuple[BinaryIO, BinaryIO] | None = None
        self._hashes = [hashlib.sha256(), hashlib.sha256()]  # of the part files
        if self.manifest["complete"]:
            self._remove_parts()
        else:
            self._open_parts()

    @property
    def position(self) -> int:
        """How many examples of the source have been handled, for going on."""
        return int(self.manifest["position"])

    @property
    def complete(self) -> bool:
        return bool(self.manifest["complete"])

    def append(self, x: np.ndarray, y: Sequence[Hashable], *, skipped: int = 0) -> None:
        """Adds rows and their labels, and counts examples of the source that gave no row."""
        if self._parts is None:
            raise BadInput(f"{self.directory} is finished with {self.manifest['rows']} rows; nothing can be added")
        x = np.asarray(x)
        if len(y):
            self._write(x, y)
        self.manifest["position"] += len(y) + skipped
        self.manifest["skipped"] += skipped
        if self.manifest["part"] >= self.manifest["rows_per_shard"]:
            self._close_shard()

    def _write(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        assert self._parts is not None
        width, dtype = self.manifest["width"], np.dtype(self.manifest["dtype"])
        first = self.manifest["rows"] + self.manifest["part"]
        if x.shape != (len(y), width):
            raise BadInput(f"row {first}: the features have shape {x.shape}, expected {(len(y), width)}")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(x, dtype)
        bad = np.argwhere(~np.isfinite(stored))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            raise BadInput(f"row {first + row}: feature {column} is {x[row, column]}, expected a finite {dtype} number")
        numbers = self._numbers(y, first)
        for file, array in zip(self._parts, (stored, numbers), strict=True):
            file.write(array.data)
        for digest, array in zip(self._hashes, (stored, numbers), strict=True):
            digest.update(array.data)
        self.manifest["part"] += len(y)

    def _numbers(self, y: Sequence[Hashable], first: int) -> np.ndarray:
        """The labels as int32: themselves when they are whole numbers, else their places in the list of labels."""
        whole = all(isinstance(label, (int, np.integer)) and not isinstance(label, bool) for label in y)
        if first == 0 and not whole:
            self.manifest["labels"] = []
        if self.manifest["labels"] is None:
            for i, label in enumerate(y):
                if not (whole and -(2**31) <= int(label) < 2**31):  # type: ignore[call-overload]
                    raise BadInput(
                        f"row {first + i}: label is {label!r}, expected a whole number of 32 bits like those before"
                    )
            return np.asarray(y, np.int32)
        for label in y:
            if label not in self._known:
                self.manifest["labels"].append(encode(label))
                self._known[label] = len(self._known)
        return np.array([self._known[label] for label in y], np.int32)

    def commit(self) -> None:
        """Makes everything appended so far survive an interruption."""
        for file in self._parts or ():
            file.flush()
            os.fsync(file.fileno())
        self.manifest["part_sha256"] = [digest.hexdigest() for digest in self._hashes]
        self._write_manifest()

    def finish(self) -> None:
        """Closes the last shard; the folder can be opened as a stream from now on."""
        if self._parts is None:
            return
        if self.manifest["part"]:
            self._close_shard()
        if not self.manifest["rows"]:
            raise BadInput(f"{self.directory} got no rows, and {self.manifest['skipped']} examples were skipped")
        self.close()
        self.manifest["complete"] = True
        self.manifest.pop("part_sha256", None)
        self._write_manifest()
        self._remove_parts()

    def close(self) -> None:
        """Lets go of the files without finishing."""
        for file in self._parts or ():
            file.close()
        self._parts = None

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.finish()
        elif kind is KeyboardInterrupt:
            self.commit()
        self.close()

    # The shard being written is two files of bare rows; the manifest says how many of them count.

    def _part_path(self, kind: str) -> Path:
        return self.directory / f"{kind}.part"

    def _remove_parts(self) -> None:
        for kind in ("x", "y"):
            self._part_path(kind).unlink(missing_ok=True)

    def _open_parts(self) -> None:
        row = np.dtype(self.manifest["dtype"]).itemsize * self.manifest["width"]
        files: list[BinaryIO] = []
        for kind in ("x", "y"):
            files.append(os.fdopen(open_own(self._part_path(kind), os.O_RDWR | os.O_CREAT), "r+b"))
            if not lock(files[-1]):
                raise BadInput(f"{self.directory} is being written by another process")
        self._parts = (files[0], files[1])
        sizes = (row * self.manifest["part"], 4 * self.manifest["part"])
        if not self._parts_are_whole(sizes):
            self._back_to_border()
            sizes = (0, 0)
        for file, size in zip(files, sizes, strict=True):
            file.truncate(size)  # rows written after the last commit
            file.seek(size)
        remove_temporaries(self.directory)
        if self.manifest["part"] >= self.manifest["rows_per_shard"]:  # interrupted just before the shard was closed
            self._close_shard()

    def _parts_are_whole(self, sizes: tuple[int, int]) -> bool:
        """Whether the part files hold what the manifest counts; takes it into their checksums."""
        told = self.manifest.get("part_sha256")
        for i, (file, size) in enumerate(zip(self._parts or (), sizes, strict=True)):
            if (found := file.seek(0, os.SEEK_END)) < size:
                if "border" not in self.manifest:  # an earlier version did not know the last one
                    raise BadInput(f"{self._part_path('xy'[i])} has {found} bytes, expected at least {size}")
                return False
            file.seek(0)
            left = size
            while left and (piece := file.read(min(left, 1 << 22))):
                self._hashes[i].update(piece)
                left -= len(piece)
            if told is not None and self.manifest["part"] and self._hashes[i].hexdigest() != told[i]:
                return False
        return True

    def _back_to_border(self) -> None:
        """Forgets the rows after the last shard, whose files are damaged; they are extracted again."""
        border = self.manifest["border"]
        self.manifest |= {"part": 0, "position": border["position"], "skipped": border["skipped"]}
        self.manifest["skipped_sha256"] = border["skipped_sha256"]
        labels = self.manifest["labels"]
        self.manifest["labels"] = None if border["labels"] is None else labels[: border["labels"]]
        self._known = {decode(code): i for i, code in enumerate(self.manifest["labels"] or [])}
        self._hashes = [hashlib.sha256(), hashlib.sha256()]

    def _border(self) -> dict[str, Any]:
        """Where the last shard ends: what is after it can be extracted again."""
        labels = self.manifest["labels"]
        return {
            "position": self.manifest["position"],
            "skipped": self.manifest["skipped"],
            "skipped_sha256": self.manifest.get("skipped_sha256"),
            "labels": None if labels is None else len(labels),
        }

    def _close_shard(self) -> None:
        """Turns the part files into a shard. Interrupted anywhere, the old manifest with the part files still holds."""
        self.commit()
        assert self._parts is not None
        rows, number = self.manifest["part"], len(self.manifest["shards"])
        shard: dict[str, Any] = {"rows": rows}
        for kind, file in zip(("x", "y"), self._parts, strict=True):
            dtype = np.dtype(self.manifest["dtype"] if kind == "x" else np.int32)
            shape = (rows, self.manifest["width"]) if kind == "x" else (rows,)
            shard[kind] = f"{kind}-{number:05d}.npy"
            shard[f"{kind}_sha256"] = write_shard(self.directory / shard[kind], file, dtype, shape)
        sync_directory(self.directory)
        self.manifest["shards"].append(shard)
        self.manifest["rows"] += rows
        self.manifest["part"] = 0
        self.manifest["border"] = self._border()
        self._hashes = [hashlib.sha256(), hashlib.sha256()]
        self._write_manifest()
        for file in self._parts:
            file.truncate(0)
            file.seek(0)

    def _write_manifest(self) -> None:
        self.manifest.setdefault("border", {"position": 0, "skipped": 0, "skipped_sha256": None, "labels": None})
        if self.manifest["complete"]:
            del self.manifest["border"]
        write_sealed(self.directory / "manifest.json", self.manifest)
        write_sealed(self.directory / COPY, self.manifest)  # second, so that one of the two is always whole

    def _restore_manifest(self) -> None:
        """Puts the copy of the manifest in its place where that is damaged or gone: the shards are worth keeping."""
        path = self.directory / "manifest.json"
        try:
            read_json(path)
        except (FileNotFoundError, BadInput):
            with suppress(FileNotFoundError, BadInput):
                write_sealed(path, read_json(self.directory / COPY))
