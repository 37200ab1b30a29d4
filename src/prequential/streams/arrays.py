"""Streams from NumPy arrays, in memory or on disk as .npy and .npz files."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import array_hash, cache_folder, file_hash
from prequential.streams.stream import Chunk, Stream

IN_MEMORY = 256 * 2**20  # bytes up to which a compressed array is held in memory
X_NAMES = ("x", "X", "data", "features", "images")
Y_NAMES = ("y", "Y", "label", "labels", "target", "targets", "class")


class ArrayStream(Stream):
    """The rows of an array as examples.

    Parameters
    ----------
    x
        The examples, (n, features) or (n, height, width[, channels]): an array, a memory map, or anything that can be
        indexed by slices and arrays of integers.
    y
        Their n labels.
    time
        n numbers to order the examples by, where they are not in order already.
    classes
        How many labels there can be, or which.
    missing
        Whether NaN means "not measured"; otherwise it is a bad row. By default yes for vectors of floats.
    on_bad_row
        "stop" or "skip" examples that are not finite numbers or have no label.

    Examples
    --------
    >>> import numpy as np
    >>> stream = ArrayStream(np.eye(4), ["a", "b", "a", "c"], time=[3, 1, 2, 4])
    >>> chunk = stream.read(0, 2)
    >>> chunk.x.tolist(), chunk.y
    ([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]], ['b', 'a'])
    """

    def __init__(
        self,
        x: Any,
        y: Sequence[Hashable] | np.ndarray,
        *,
        time: Any = None,
        classes: int | Sequence[Hashable] | None = None,
        missing: bool | None = None,
        on_bad_row: str = "stop",
    ) -> None:
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        if not hasattr(x, "shape"):
            x = np.asarray(x)
        if len(x) != len(y):
            raise BadInput(f"x has {len(x)} examples and y has {len(y)} labels, expected as many of both")
        if len(x) == 0:
            raise BadInput("x has 0 examples, expected at least 1")
        if x.dtype.kind not in "fiub" or not 2 <= len(x.shape) <= 4:
            raise BadInput(f"x has shape {tuple(x.shape)} and type {x.dtype}, expected vectors or images of numbers")
        self.x = x
        self.y = y if isinstance(y, np.ndarray) else _as_objects(y)
        self.classes = classes
        self.missing = (x.dtype.kind == "f" and len(x.shape) == 2) if missing is None else missing
        self.on_bad_row = on_bad_row
        self.skipped = 0
        self._index: np.ndarray | None = None  # which row each example is; None: the same
        if time is not None:
            self._sort(np.asarray(time))
        if on_bad_row == "skip":
            self._skip()
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.x) if self._index is None else len(self._index)

    def fingerprint(self) -> str:
        """A hash of the examples, the labels and their order."""
        if self._hash is None:
            order = [] if self._index is None else [self._index]
            content = f"arrays {array_hash(self.x, self.y, *order)} {self.missing} {self.on_bad_row}"
            self._hash = hashlib.sha256(content.encode()).hexdigest()[:32]
        return self._hash

    def pool(self) -> tuple[Any, np.ndarray]:
        """All examples and their labels: what `SplitStream` takes."""
        if self._index is None:
            return self.x, self.y
        return self.x[self._index], self.y[self._index]

    def _read(self, start: int, stop: int) -> Chunk:
        rows = slice(start, stop) if self._index is None else self._index[start:stop]
        x = np.array(self.x[rows])  # a copy: the caller may write into it
        y = self.y[rows].tolist()
        for i, what in self._bad(x, y).items():
            raise BadInput(f"example {start + i}: {what}")
        return Chunk(x, y)

    def _bad(self, x: np.ndarray, y: list[Hashable]) -> dict[int, str]:
        """What is wrong with these examples, in order."""
        bad = {
            i: f"the label is {label!r}, expected a label"
            for i, label in enumerate(y)
            if label is None or label != label
        }
        if x.dtype.kind == "f":
            wrong = np.isinf(x) if self.missing else ~np.isfinite(x)
            if wrong.any():
                for where in np.argwhere(wrong):
                    place = tuple(int(i) for i in where)
                    feature = place[1] if len(place) == 2 else place[1:]
                    bad.setdefault(place[0], f"feature {feature} is {x[place]}, expected a finite number")
        return dict(sorted(bad.items()))

    def _sort(self, time: np.ndarray) -> None:
        if time.shape != (len(self.x),):
            raise BadInput(f"time has shape {time.shape}, expected ({len(self.x)},), one number for each example")
        unknown = np.flatnonzero(
            np.isnan(time) if time.dtype.kind == "f" else np.isnat(time) if time.dtype.kind == "M" else []
        )
        if len(unknown):
            raise BadInput(f"example {unknown[0]}: time is {time[unknown[0]]}, expected a time to order by")
        if (time[1:] < time[:-1]).any():
            self._index = np.argsort(time, kind="stable")

    def _skip(self) -> None:
        bad: list[int] = []
        for start in range(0, len(self), 1024):
            rows = np.arange(start, min(start + 1024, len(self)))
            rows = rows if self._index is None else self._index[rows]
            bad += (start + i for i in self._bad(np.asarray(self.x[rows]), self.y[rows].tolist()))
        self.skipped = len(bad)
        if bad:
            self._index = np.delete(np.arange(len(self.x)) if self._index is None else self._index, bad)


def array_stream(
    path: str | Path,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    time: str | None = None,
    classes: int | Sequence[Hashable] | None = None,
    on_bad_row: str = "stop",
) -> ArrayStream:
    """A stream from a .npz file, or from a .npy file; what is not compressed is memory-mapped.

    Parameters
    ----------
    path
        In a .npz file the examples are called x (or X, data, features, images) and the labels y (or label, labels,
        target, class). A .npy file holds the examples; their labels are in another .npy file, or in the last column.
    label
        The name of the labels in a .npz file, or the .npy file they are in.
    features
        The names of the arrays in a .npz file to predict from; several are put side by side.
    time
        The name of the times to order by in a .npz file.
    classes, on_bad_row
        As in `ArrayStream`.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _npy_stream(path, label, features, time, classes, on_bad_row)
    arrays = load_npz(path)

    def pick(name: str | None, candidates: Sequence[str], what: str) -> np.ndarray:
        found = [given for given in ([name] if name else candidates) if given in arrays and _fits(arrays[given], what)]
        if not found:
            wanted = repr(name) if name else " or ".join(map(repr, candidates[:2]))
            held = ", ".join(f"{key} {array.dtype} {array.shape}" for key, array in arrays.items())
            raise BadInput(f"{path} has no array {wanted} for the {what}; it holds {held}")
        return arrays[found[0]]

    y = pick(label, Y_NAMES, "labels")
    if features:
        parts = [pick(name, (), "examples") for name in features]
        x = parts[0] if len(parts) == 1 else np.concatenate([part.reshape(len(part), -1) for part in parts], 1)
    else:
        x = pick(None, X_NAMES, "examples")
    order = None if time is None else pick(time, (), "times")
    if x.ndim == 1:
        x = x[:, None]
    return ArrayStream(x, y, time=order, classes=classes, on_bad_row=on_bad_row)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file; those that are not compressed, or are large, are memory-mapped."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {info.filename[:-4]: _member(path, archive, info) for info in members}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is no NumPy file that can be read: {error}") from None


def load_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is no NumPy file that can be read: {error}") from None
    return array


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type == zipfile.ZIP_STORED and info.file_size:
        return _mapped(path, archive, info)
    if info.file_size <= IN_MEMORY:
        with archive.open(info) as member:
            array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
            return array
    copy = cache_folder() / f"unpacked-{file_hash(path)}-{info.CRC:08x}.npy"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        temporary = copy.with_name(f".{copy.name}.{os.getpid()}.tmp")
        with archive.open(info) as member, temporary.open("wb") as file:
            shutil.copyfileobj(member, file, 2**20)
        temporary.replace(copy)
    return load_npy(copy)


def _mapped(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """An array that lies in the archive as it is: mapped from there."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(member)
        header = member.tell()
        if dtype.hasobject or 0 in shape or shape == ():
            member.seek(0)
            array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
            return array
    with path.open("rb") as file:  # the local header has its own lengths of name and extra field
        file.seek(info.header_offset + 26)
        lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
    offset = info.header_offset + 30 + lengths + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _npy_stream(
    path: Path,
    label: str | None,
    features: Sequence[str] | None,
    time: str | None,
    classes: int | Sequence[Hashable] | None,
    on_bad_row: str,
) -> ArrayStream:
    if features or time:
        raise BadInput(f"{path} holds one array without names, so features and time cannot be chosen; use a .npz file")
    x = load_npy(path)
    if label is not None:
        return ArrayStream(x, load_npy(Path(label)), classes=classes, on_bad_row=on_bad_row)
    if x.ndim != 2 or x.shape[1] < 2:
        raise BadInput(
            f"{path} has shape {x.shape}; give the labels' own .npy file as label, or put them in the last of 2 or more columns"
        )
    y = np.array(x[:, -1])
    whole = y.astype(np.int64)
    return ArrayStream(x[:, :-1], whole if np.array_equal(whole, y) else y, classes=classes, on_bad_row=on_bad_row)


def _fits(array: np.ndarray, what: str) -> bool:
    return array.ndim >= 1 and (what != "examples" or array.dtype.kind in "fiub")


def _as_objects(y: Sequence[Hashable]) -> np.ndarray:
    """Labels of any kind, tuples included, as an array of Python objects."""
    objects = np.empty(len(y), object)
    objects[:] = list(y)
    return objects
