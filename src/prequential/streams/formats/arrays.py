"""Streams from NumPy arrays, in memory or on disk as .npy and .npz files."""

from __future__ import annotations

import hashlib
import math
import shutil
import zipfile
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import array_hash, cached_file, file_hash
from prequential.streams.formats.encoding import GROUP_SIGNS, Column, fill, shown
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool

NO_NUMPY = "is no NumPy file that can be read"
IN_MEMORY = 256 * 2**20  # bytes up to which a compressed array is held in memory
X_NAMES = ("x", "X", "data", "features", "images")
Y_NAMES = ("y", "Y", "label", "labels", "target", "targets", "class")


class ArrayStream(Stream):
    """The rows of an array as examples.

    Parameters
    ----------
    x
        The examples, (n, features) or (n, height, width[, channels]): an array, a memory map, a tensor, a data frame of
        numbers, or anything with a shape and a dtype that can be indexed by slices and arrays of integers.
    y
        Their n labels: a list, an array, a tensor or a column of a data frame.
    time
        n numbers to order the examples by, where they are not in order already.
    group
        n names or numbers that say to whom or what an example belongs, such as a user; they become 32 more features
        of ±1, the same that `TableStream` gives. Only beside vectors.
    group_name
        What the group is called; goes into those features as the name of the column does in a table.
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
        y: Any,
        *,
        time: Any = None,
        group: Any = None,
        group_name: str = "group",
        classes: int | Sequence[Hashable] | None = None,
        missing: bool | None = None,
        on_bad_row: str = "stop",
    ) -> None:
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        self._name = "the arrays"  # for messages
        x = _as_array(x, "x")
        if isinstance(y, np.ma.MaskedArray):
            y = y.tolist()  # None where it is masked
        listed = isinstance(y, Sequence) and not hasattr(y, "dtype")
        if hasattr(y, "to_list") and any(map(_is_none, y.to_list())):  # a column whose numbers would become floats
            y, listed = [None if _is_none(label) else label for label in y.to_list()], True
        y = y if listed else _as_array(y, "y")
        if len(x) != len(y):
            raise BadInput(f"x has {len(x)} examples and y has {len(y)} labels, expected as many of both")
        if len(x) == 0:
            raise BadInput("x has 0 examples, expected at least 1")
        y = (
            _as_objects([None if label is np.ma.masked else label for label in y])
            if listed
            else _column(y, "y", "label", len(x))
        )
        if x.dtype.kind not in "fiub" or not 2 <= len(x.shape) <= 4:
            remedy = "; TableStream reads data frames with text" if x.dtype.kind == "O" else ""
            raise BadInput(
                f"x has shape {tuple(x.shape)} and type {x.dtype}, expected vectors or images of numbers{remedy}"
            )
        self.x, self.y = x, y
        self.classes = classes
        self.missing = (x.dtype.kind == "f" and len(x.shape) == 2) if missing is None else missing
        self.on_bad_row = on_bad_row
        self.skipped = 0
        self._index: np.ndarray | None = None  # which row each example is; None: the same
        self._whole = False  # whether labels that are whole numbers are given as such, though they lie among floats
        self._group = None if group is None else _column(_as_array(group, "group"), "group", "name", len(x))
        self._signs = Column(group_name, "group", pa.string(), GROUP_SIGNS)
        if group is not None and len(x.shape) != 2:
            raise BadInput(
                f"x has shape {tuple(x.shape)}, and a group cannot become a feature beside an image; leave it out"
            )
        if time is not None:
            self._sort(_column(_as_array(time, "time"), "time", "number", len(x)))
        if on_bad_row == "skip":
            self._skip()
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.x) if self._index is None else len(self._index)

    def fingerprint(self) -> str:
        """A hash of the examples, the labels and their order."""
        if self._hash is None:
            more = [array for array in (self._index, self._group) if array is not None]
            content = f"arrays {array_hash(self.x, self.y, *more)} {self.missing} {self.on_bad_row}"
            if self._group is not None:
                content += f" {self._signs}"
            self._hash = hashlib.sha256(content.encode()).hexdigest()[:32]
        return self._hash

    def pool(self) -> tuple[Pool, np.ndarray]:
        """All examples by position, read on demand, and their labels: what `SplitStream` takes."""
        y = self.y if self._index is None else self.y[self._index]
        if y.dtype.kind in "fOM":
            for i, label in enumerate(y.tolist()):
                if label is None or label != label:
                    raise BadInput(f"example {i}: the label is {label!r}, expected a label")
        if self._whole and np.isfinite(y).all() and (y == np.floor(y)).all():
            y = y.astype(np.int64)
        return Pool(self, lambda positions: self._take(positions)[0]), y

    def _read(self, start: int, stop: int) -> Chunk:
        return Chunk(*self._take(slice(start, stop), start))

    def _take(self, positions: slice | np.ndarray, first: int | None = None) -> tuple[np.ndarray, list[Hashable]]:
        """A copy of the examples at these positions, and their labels."""
        rows = positions if self._index is None else self._index[positions]
        with reading(self._name):
            x = np.array(self.x[rows])  # a copy: the caller may write into it
            y = self.y[rows].tolist()
        if self._whole:  # label by label: what comes later cannot change what a label is
            y = [int(label) if label.is_integer() else label for label in y]
        for i, what in self._bad(x, y).items():
            example = positions[i] if isinstance(positions, np.ndarray) else (first or 0) + i
            raise BadInput(f"example {example}: {what}")
        if self._group is not None:
            signs = np.zeros((len(x), GROUP_SIGNS))
            fill(self._signs, pa.array(self._group[rows].tolist(), from_pandas=True), signs)
            x = np.concatenate([x, signs], 1, dtype=np.result_type(x.dtype, np.int8))
        return x, y

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
    group: str | None = None,
    classes: int | Sequence[Hashable] | None = None,
    on_bad_row: str = "stop",
    max_bytes: int | None = None,
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
        The name of the times to order by in a .npz file, or the .npy file they are in.
    group
        The name of the array in a .npz file, or the .npy file, that says to whom or what each example belongs.
    classes, on_bad_row
        As in `ArrayStream`.
    max_bytes
        How many bytes the compressed arrays of a .npz file may unpack to; see `prequential.streams.limits`.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _npy_stream(path, label, features, time, group, classes, on_bad_row)
    arrays = load_npz(path, max_bytes)

    def pick(name: str | None, candidates: Sequence[str], what: str) -> str:
        found = [given for given in ([name] if name else candidates) if given in arrays]
        for given in found:
            if _fits(arrays[given], what):
                return given
        if found:
            array = arrays[found[0]]
            raise BadInput(
                f"{path}: array {found[0]!r} has shape {array.shape} and type {array.dtype}, expected "
                f"{'numbers' if what == 'examples' else 'one value for each example'} for the {what}"
            )
        wanted = repr(name) if name else " or ".join(map(repr, candidates[:2]))
        held = ", ".join(f"{key} {array.dtype} {array.shape}" for key, array in arrays.items())
        raise BadInput(f"{path} has no array {wanted} for the {what}; it holds {held}")

    y = pick(label, Y_NAMES, "labels")
    for use, names in (("a feature", features or []), ("the group", [group]), ("the time", [time])):
        if y in names:  # x or the order would tell it
            raise BadInput(f"{path}: array {y!r} is the label and cannot also be {use}")
    chosen = features or [pick(None, [name for name in X_NAMES if name != y], "examples")]
    parts = [arrays[pick(name, (), "examples")] for name in chosen]
    with _naming(path):
        x = (parts[0] if parts[0].ndim > 1 else parts[0][:, None]) if len(parts) == 1 else SideBySide(parts, chosen)
        stream = ArrayStream(
            x,
            arrays[y],
            time=None if time is None else arrays[pick(time, (), "times")],
            group=None if group is None else arrays[pick(group, (), "group")],
            group_name=group or "group",
            classes=classes,
            on_bad_row=on_bad_row,
        )
    stream._name = str(path)
    return stream


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Sentences about arrays say from which file they are."""
    try:
        yield
    except BadInput as error:
        raise BadInput(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


class SideBySide:
    """Several arrays as one of vectors, put together when rows are read, so that memory maps stay such."""

    def __init__(self, parts: Sequence[np.ndarray], names: Sequence[str]) -> None:
        for part, name in zip(parts, names, strict=True):
            if len(part) != len(parts[0]):
                raise BadInput(
                    f"array {name!r} has {len(part)} rows and {names[0]!r} has {len(parts[0])}, expected as "
                    "many of both"
                )
        self.parts = parts
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.shape = (len(parts[0]), sum(int(np.prod(part.shape[1:])) for part in parts))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        taken = [np.asarray(part[rows]) for part in self.parts]
        return np.concatenate([part.reshape(len(part), -1) for part in taken], 1, dtype=self.dtype)


def load_npz(path: Path, max_bytes: int | None = None, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a .npz file; those that are not compressed, or are large, are memory-mapped.

    `max_bytes`: how many bytes it may unpack to, see `prequential.streams.limits`; `names`: these
    arrays only, which are to be read whole, so that none is mapped and their checksums are compared.
    """
    with reading(path, NO_NUMPY), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = [info for info in members if names is None or info.filename[:-4] in names]
        packed = [info for info in members if info.compress_type != zipfile.ZIP_STORED]
        Limit(path, max_bytes=max_bytes, on_disk=True).check(path, sum(info.file_size for info in packed))
        room = min(IN_MEMORY, Limit(path).bytes)  # what does not fit is unpacked on disk
        arrays: dict[str, np.ndarray] = {}
        for info in members:
            name = info.filename[:-4]
            if name in arrays:
                raise BadInput(f"{path} holds two arrays called {name!r}; expected different names")
            header = _checked_header(path, archive, info)
            in_memory = info.file_size <= room
            if info.compress_type == zipfile.ZIP_STORED and names is None:
                arrays[name] = _mapped(path, info, header)
            else:
                arrays[name] = _unpacked(path, archive, info, in_memory)
            if in_memory and not isinstance(arrays[name], np.memmap):
                room -= info.file_size
        return arrays


def npz_names(path: Path) -> set[str]:
    """The names of the arrays in a .npz file."""
    with reading(path, NO_NUMPY), zipfile.ZipFile(path) as archive:
        return {name[:-4] for name in archive.namelist() if name.endswith(".npy")}


def load_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    with reading(path, NO_NUMPY):
        with path.open("rb") as file:
            shape, fortran, dtype = header = _header(file)
            offset = file.tell()
        _check_header(str(path), header, path.stat().st_size - offset)
        return _map(path, dtype, offset, shape, fortran)


@dataclass
class _Header:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    size: int  # of the header itself


def _checked_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    """What a member is said to hold, if that is as much as it has bytes."""
    name = f"{path}: array {info.filename[:-4]!r}"
    with archive.open(info) as member:
        shape, fortran, dtype = header = _header(member)
        offset = member.tell()
    _check_header(name, header, info.file_size - offset)
    return _Header(shape, fortran, dtype, offset)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype


def _check_header(name: str, header: tuple[tuple[int, ...], bool, np.dtype], size: int) -> None:
    shape, _, dtype = header
    if dtype.hasobject:
        raise BadInput(
            f"{name} holds Python objects, which are never unpickled; save numbers or text, such as array.astype(str)"
        )
    if any(type(length) is not int or length < 0 for length in shape):
        raise BadInput(f"{name} has shape {shown(shape)}, expected whole numbers that are not negative")
    if (expected := math.prod(shape) * dtype.itemsize) > size:
        raise BadInput(
            f"{name} of shape {shown(shape)} and type {dtype.str} takes {expected} bytes, but the file holds "
            f"{size} of them"
        )


def _mapped(path: Path, info: zipfile.ZipInfo, header: _Header) -> np.ndarray:
    """An array that lies in the archive as it is: mapped from there."""
    with path.open("rb") as file:  # the local header has its own lengths of name and extra field
        file.seek(info.header_offset + 26)
        lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
    offset = info.header_offset + 30 + lengths + header.size
    return _map(path, header.dtype, offset, header.shape, header.fortran)


def _unpacked(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, in_memory: bool) -> np.ndarray:
    if in_memory:
        with archive.open(info) as member:
            array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
            if member.read(1):  # also has the checksum compared
                raise BadInput(f"{path}: array {info.filename[:-4]!r} has bytes behind its last number")
            return array

    def unpack(to: Path) -> None:
        with archive.open(info) as member, to.open("wb") as file:
            shutil.copyfileobj(member, file, 2**20)

    return load_npy(cached_file(f"unpacked-{file_hash(path)}-{info.CRC:08x}.npy", unpack))


def _map(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...], fortran: bool) -> np.ndarray:
    """An array that lies in a file as it is: mapped from there."""
    if math.prod(shape) == 0:  # which cannot be mapped
        return np.empty(shape, dtype)
    if shape == ():
        with path.open("rb") as file:
            file.seek(offset)
            return np.frombuffer(file.read(dtype.itemsize), dtype)[0:1].reshape(())
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _npy_stream(
    path: Path,
    label: str | None,
    features: Sequence[str] | None,
    time: str | None,
    group: str | None,
    classes: int | Sequence[Hashable] | None,
    on_bad_row: str,
) -> ArrayStream:
    if features:
        raise BadInput(f"{path} holds one array without names, so features cannot be chosen; use a .npz file")
    x = load_npy(path)
    for use, other in (("the examples", path), ("the group", group), ("the time", time)):
        if label is not None and other is not None and _same_file(label, other):  # x or the order would tell it
            raise BadInput(f"{label} holds the labels and cannot also hold {use}")
    whole = False
    if label is not None:
        y = load_npy(Path(label))
    elif x.ndim == 2 and x.shape[1] >= 2:
        x, y = x[:, :-1], np.array(x[:, -1])
        whole = y.dtype.kind == "f"
    else:
        raise BadInput(
            f"{path} has shape {x.shape}; give the labels' own .npy file as label, or put them in the last of "
            "2 or more columns"
        )
    with _naming(path):
        stream = ArrayStream(
            x,
            y,
            time=None if time is None else load_npy(Path(time)),
            group=None if group is None else load_npy(Path(group)),
            group_name="group" if group is None else Path(group).stem,
            classes=classes,
            on_bad_row=on_bad_row,
        )
    stream._whole, stream._name = whole, str(path)
    return stream


def _same_file(one: str | Path, other: str | Path) -> bool:
    return Path(one).exists() and Path(other).exists() and Path(one).samefile(other)


def _fits(array: np.ndarray, what: str) -> bool:
    return array.ndim >= 1 and (what != "examples" or array.dtype.kind in "fiub")


def _column(array: np.ndarray, name: str, what: str, n: int) -> np.ndarray:
    """An array of one value for each example; (n, 1) will do."""
    if array.shape == (n, 1):
        array = array[:, 0]
    if array.shape != (n,):
        raise BadInput(f"{name} has shape {array.shape}, expected ({n},), one {what} for each example")
    return array


def _as_array(values: Any, name: str) -> Any:
    """Tensors, data frames and lists as arrays; whatever else has a shape and a dtype stays as it is."""
    try:
        if hasattr(values, "detach"):  # a tensor, wherever it lies; torch need not be imported here
            values = values.detach().cpu()
            return (values.float() if "bfloat16" in str(values.dtype) else values).numpy()
        if isinstance(values, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in values):
            values = np.ma.stack(values)
        if isinstance(values, np.ma.MaskedArray):
            return without_mask(values)
        if hasattr(values, "to_numpy") or not (hasattr(values, "shape") and hasattr(values, "dtype")):
            values = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"{name} cannot become an array: {reason(error)}") from None
    if hasattr(values, "toarray"):  # a sparse matrix of SciPy
        raise BadInput(f"{name} is a sparse {type(values).__name__}, expected an array; give {name}.toarray()")
    if values.shape == ():
        raise BadInput(f"{name} is {values!s:.60}, expected one for each example")
    return values


def without_mask(values: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as a plain one: NaN (of times NaT, else None) where it is masked.

    >>> without_mask(np.ma.masked_equal([[1, -9]], -9)).tolist()
    [[1.0, nan]]
    """
    if not np.ma.getmaskarray(values).any():
        return np.asarray(values.data)
    kind: Any = np.float64 if values.dtype.kind in "biu" else values.dtype if values.dtype.kind in "fcmM" else object
    nothing: Any = np.array("NaT", kind) if values.dtype.kind in "mM" else None if kind is object else np.nan
    plain = values.data.astype(kind)
    plain[np.ma.getmaskarray(values)] = nothing
    return plain


def _is_none(value: Any) -> bool:
    """None, a masked value, or pandas' NA, which cannot be compared with anything."""
    return value is None or value is np.ma.masked or type(value).__name__ == "NAType"


def _as_objects(y: Sequence[Hashable]) -> np.ndarray:
    """Labels of any kind, tuples included, as an array of Python objects."""
    objects = np.empty(len(y), object)
    objects[:] = list(y)
    return objects
