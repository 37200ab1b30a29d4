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
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.labels import decode, encode
from prequential.storage.files import (
    is_temporary,
    make_directory,
    remove_temporaries,
    storage,
    sync_directory,
    write_atomically,
)
from prequential.storage.sealed import read_json, seal, write_sealed
from prequential.streams.formats.arrays import load_npy
from prequential.streams.formats.feature_shards import (
    FORMAT,
    FolderLock,
    PartFile,
    check_content,
    check_shard,
    read_manifest,
    shards_hash,
)
from prequential.streams.limits import reading
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool

COPY = ".manifest.json.copy"
PARTS = ("x.part", "y.part")  # the shard being written: bare rows, of which the manifest says how many count
SKIPPED = "skipped.jsonl"  # written by an extraction of images


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
        self._damaged = False  # whether manifest.json is, while its copy is whole
        self._parts: tuple[PartFile, PartFile] | None = None
        self._lock = FolderLock(self.directory)
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: dict[str, Any]) -> None:
        """Goes on with what is there. Whatever can be refused is refused before anything is changed."""
        if self.directory.exists():
            self._refuse_links()
            self._read_manifest(settings)
        if not self.complete:  # a finished folder is locked only where something is to be changed
            make_directory(self.directory)
            self._lock.take()
            self._read_manifest(settings)  # as the writer before has left it
        self._known = {decode(code): i for i, code in enumerate(self.manifest["labels"] or [])}
        if not self.complete:
            self._open_parts()

    def _refuse_links(self) -> None:
        """Refuses anything but a file in the place of those that are written in place."""
        if not self.directory.is_dir():
            raise BadInput(f"{self.directory} is a file, expected a folder")
        for path in (self.directory / name for name in (*PARTS, SKIPPED)):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                what = f"a symbolic link to {path.readlink()}" if path.is_symlink() else "not a regular file"
                raise BadInput(f"{path} is {what}, expected a file; remove it and start again")

    def _read_manifest(self, settings: dict[str, Any]) -> None:
        """Reads the manifest, or its copy where that is damaged or gone: the shards are worth keeping."""
        names = [name for name in ("manifest.json", COPY) if self._is_whole(name)]
        if not names and not (self.directory / "manifest.json").exists():
            return
        self.manifest = read_manifest(self.directory, (names or ["manifest.json"])[0])  # or says what is wrong
        self._damaged = names == [COPY]
        begun = {**self.manifest, **self.manifest["about"]}
        for name, value in {**settings, **settings["about"]}.items():
            if name != "about" and begun.get(name) != value:
                raise BadSetting(f"{self.directory} was begun with {name} {begun.get(name)!r}, not {value!r}")

    def _is_whole(self, name: str) -> bool:
        try:
            read_json(self.directory / name)
        except (FileNotFoundError, BadInput):
            return False
        return True

    @property
    def position(self) -> int:
        """How many examples of the source have been handled, for going on."""
        return int(self.manifest["position"])

    @property
    def complete(self) -> bool:
        return bool(self.manifest["complete"])

    def append(
        self, x: np.ndarray, y: Sequence[Hashable], *, skipped: int = 0, skipped_sha256: str | None = None
    ) -> None:
        """Adds rows and their labels, and counts examples of the source that gave no row.

        Where these are listed in a file, `skipped_sha256` is the checksum of that list with them in it.
        """
        if self._parts is None:
            raise BadInput(f"{self.directory} is finished with {self.manifest['rows']} rows; nothing can be added")
        x = np.asarray(x)
        progress: dict[str, Any] = {
            "part": self.manifest["part"] + len(y),
            "position": self.manifest["position"] + len(y) + skipped,
            "skipped": self.manifest["skipped"] + skipped,
        }
        if skipped_sha256 is not None:
            progress["skipped_sha256"] = skipped_sha256
        if len(y):
            self._write(x, y)
        self.manifest.update(progress)  # in one step: what is interrupted before it is forgotten
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
        arrays = (stored, self._numbers(y, first))
        for part, array in zip(self._parts, arrays, strict=True):
            part.write(array)
        for part, array in zip(self._parts, arrays, strict=True):
            part.count(array)

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
        if self._parts is None:
            return
        for part in self._parts:
            part.sync()
        self.manifest["part_sha256"] = [part.hash.hexdigest() for part in self._parts]
        if not self.manifest["shards"]:
            self.manifest.setdefault("border", {"position": 0, "skipped": 0, "skipped_sha256": None, "labels": None})
        self._write_manifest(self.manifest)

    def finish(self) -> None:
        """Closes the last shard; the folder can be opened as a stream from now on.

        Of a folder that is finished already, it removes what a killed process has left, and makes the copy of the
        manifest again, or the manifest from its copy, where one of the two is damaged.
        """
        if self.complete:
            self._clean_up()
            return self.close()
        if self._parts is None:
            return
        if self.manifest["part"]:
            self._close_shard()
        if not self.manifest["rows"]:
            raise BadInput(f"{self.directory} got no rows, and {self.manifest['skipped']} examples were skipped")
        finished = {name: value for name, value in self.manifest.items() if name not in ("part_sha256", "border")}
        self._write_manifest({**finished, "complete": True})
        self._remove_parts()
        self.close()

    def verify(self) -> None:
        """Reads every shard and compares it with its checksum, or where an earlier version gave none, its size."""
        for shard in self.manifest["shards"]:
            for kind, dtype in (("x", np.dtype(self.manifest["dtype"])), ("y", np.dtype(np.int32))):
                path = self.directory / shard[kind]
                check_content(path, shard.get(f"{kind}_sha256"))
                check_shard(path, dtype, (shard["rows"], *([self.manifest["width"]] if kind == "x" else [])))

    def lock(self) -> None:
        """Makes sure that nobody else writes, before something in a finished folder is changed; until `close`."""
        self._lock.take()

    def close(self) -> None:
        """Lets go of the files without finishing."""
        for part in self._parts or ():
            part.close()
        self._parts = None
        self._lock.free()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
            elif kind is KeyboardInterrupt:
                self.commit()
        finally:
            self.close()

    def _remove_parts(self) -> None:
        for name in PARTS:
            (self.directory / name).unlink(missing_ok=True)

    def _open_parts(self) -> None:
        dtype = np.dtype(self.manifest["dtype"])
        x, y = (self.directory / name for name in PARTS)
        parts = self._parts = (PartFile(x, dtype, self.manifest["width"]), PartFile(y, np.dtype(np.int32)))
        if not self._parts_are_whole():
            self._back_to_border()
        remove_temporaries(self.directory)
        if self._damaged:
            write_sealed(self.directory / "manifest.json", self.manifest)
        sync_directory(self.directory)  # the names of the files that were made just now
        for part in parts:
            part.truncate()  # rows written after the last commit
        if self.manifest["part"] >= self.manifest["rows_per_shard"]:  # interrupted just before the shard was closed
            self._close_shard()

    def _parts_are_whole(self) -> bool:
        """Whether the part files hold what the manifest counts; takes it into their checksums."""
        rows, known = self.manifest["part"], self.manifest.get("part_sha256")
        for i, part in enumerate(self._parts or ()):
            found = part.load(rows)
            if found is None or (known is not None and rows and found != known[i]):
                if "border" not in self.manifest:  # an earlier version did not know where the last shard ends
                    raise BadInput(f"{part.path} is damaged or cut off; delete {self.directory} to extract anew")
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
        for part in self._parts or ():
            part.load(0)

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
        for kind, part in zip(("x", "y"), self._parts, strict=True):
            shard[kind] = f"{kind}-{number:05d}.npy"
            shard[f"{kind}_sha256"] = part.make_shard(self.directory / shard[kind])
        done = {"rows": self.manifest["rows"] + rows, "part": 0, "shards": [*self.manifest["shards"], shard]}
        self._write_manifest({**self.manifest, **done, "border": self._border()})
        for part in self._parts:
            part.clear()

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        write_sealed(self.directory / "manifest.json", manifest)
        self.manifest = manifest
        write_sealed(self.directory / COPY, manifest)  # second, so that one of the two is always whole

    def _clean_up(self) -> None:
        """Removes what a killed process has left in a finished folder, and makes both manifests whole."""
        path, copy = self.directory / "manifest.json", self.directory / COPY
        with storage(self.directory):
            data = seal(self.manifest) if self._damaged else path.read_bytes()
            old = not copy.exists() and "sha256" not in json.loads(data)  # an earlier version made no copy
            copied = old or (copy.is_file() and not copy.is_symlink() and copy.read_bytes() == data)
            left = any(is_temporary(file) or file.name in PARTS for file in self.directory.iterdir())
            if copied and not left and not self._damaged:
                return
            self.lock()
            remove_temporaries(self.directory)
            self._remove_parts()
            if self._damaged:
                write_atomically(path, data)
            if not copied:
                write_atomically(copy, data)
            self._damaged = False
