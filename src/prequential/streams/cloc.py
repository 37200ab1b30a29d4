"""CLOC: 39 million photos in the order they were taken, to be told where (Cai, Sener, Koltun 2021).

The official metadata comes in two forms, both taken as they are, and never unpickled in a way that could run code:

* text, a line for each photo: `class,time,user,path`, or with the date as the second of five or more columns;
* a folder with `train_labels.torchSave`, `train_time.torchSave`, `train_userID.torchSave`, `train_store_loc.torchSave`.

A .npz file with the arrays `label`, `time`, `user`, `path` will do as well. On first use it is turned into arrays on
disk (`convert_metadata`) that are opened in no time and take no memory. Around 5 % of the photos can no longer be had:
those that are missing or cannot be decoded are skipped and counted. So that positions stay what they are, `ClocStream`
tries all photos once before it starts and keeps a list of the good ones; an interrupted try goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.checkpoint import write_atomically
from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import cache_folder, file_hash
from prequential.streams.images import Decoder
from prequential.streams.stream import Chunk, Stream

FORMAT = "prequential-cloc-1"
COLUMNS = {"label": "<i4", "time": "<i8", "user": "<i8", "begin": "<i8", "size": "<u2"}  # of the arrays on disk
TORCH = {"label": "labels", "time": "time", "user": "userID", "path": "store_loc"}
ROWS = 1 << 18  # handled at once when converting
TRIED_AT_ONCE = 4096  # an interruption loses the trial of at most so many photos

Progress = Callable[[int, int, int], None]  # photos done, photos in all, photos skipped


class ClocRecords:
    """The official metadata with the photos on disk, bad ones included.

    Parameters
    ----------
    metadata
        The text file, the .npz file, the folder of .torchSave files, or a folder made by `convert_metadata`.
    images
        The folder that the paths in the metadata start from.
    size
        Height and width to which photos are scaled, cut at the middle.
    workers
        How many threads decode; by default one for each processor, at most 8.
    converted
        Where the arrays made from the metadata are kept; by default in the cache folder.
    """

    def __init__(
        self,
        metadata: str | Path,
        images: str | Path,
        *,
        size: int = 160,
        workers: int | None = None,
        converted: str | Path | None = None,
    ) -> None:
        if size < 1:
            raise BadSetting(f"size ({size}) must be at least 1")
        self.images, self.size = Path(images), size
        if not self.images.is_dir():
            raise BadInput(f"{self.images} is not a folder; expected the one that the paths in the metadata start from")
        self.folder = _converted(Path(metadata), converted)
        self.index: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        self._columns = {name: _open(self.folder / name, dtype, self.index["rows"]) for name, dtype in COLUMNS.items()}
        self._paths = np.memmap(self.folder / "paths", np.uint8, "r")
        self.classes: int = self.index["classes"]
        self.decoder = Decoder(workers)

    def __len__(self) -> int:
        return int(self.index["rows"])

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Labels ("label"), times ("time") or users ("user", a hash each) of some rows."""
        return np.array(self._columns[name][rows])

    def paths(self, rows: slice | np.ndarray) -> list[Path]:
        """Where the photos of some rows are."""
        begins, sizes = self.column("begin", rows).tolist(), self.column("size", rows).tolist()
        return [
            self.images / bytes(self._paths[begin : begin + size]).decode()
            for begin, size in zip(begins, sizes, strict=True)
        ]

    def decode(self, rows: slice | np.ndarray) -> list[np.ndarray | str]:
        """The photos of some rows, (size, size, 3) bytes each, or what is wrong with them."""
        return list(self.decoder(self.paths(rows), (self.size, self.size), False))

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, list[int], int]:
        """The photos of rows start..stop-1 that can be decoded, their labels, and how many cannot."""
        stop = min(stop, len(self))
        found = self.decode(slice(start, stop))
        good = [i for i, image in enumerate(found) if not isinstance(image, str)]
        images = np.stack([found[i] for i in good]) if good else np.empty((0, self.size, self.size, 3), np.uint8)
        labels = self.column("label", slice(start, stop))[good].tolist()
        return images, labels, len(found) - len(good)

    def fingerprint(self) -> str:
        """A hash of the metadata and the size; it does not look at the photos."""
        return hashlib.sha256(f"cloc 1 {self.index['sha256']} {self.size}".encode()).hexdigest()[:32]


class ClocStream(Stream):
    """CLOC as a stream of photos, those left out that are missing or cannot be decoded; `skipped` says how many.

    Parameters
    ----------
    metadata, images, size, workers, converted
        As in `ClocRecords`.
    classes
        How many places there can be; by default as many as the metadata has, which is 713 for CLOC.
    progress
        Called with how many photos were tried, how many there are, and how many were skipped, while they are tried
        for the first time.
    """

    def __init__(
        self,
        metadata: str | Path,
        images: str | Path,
        *,
        size: int = 160,
        classes: int | None = None,
        workers: int | None = None,
        converted: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.records = ClocRecords(metadata, images, size=size, workers=workers, converted=converted)
        self.classes = classes or self.records.classes
        place = hashlib.sha256(str(self.records.images.resolve()).encode()).hexdigest()[:12]
        good = self.records.folder / f"good-{place}"
        if not good.exists():
            _try_all(self.records, good, progress)
        self._good = np.memmap(good, "<i4", "r") if good.stat().st_size else np.empty(0, np.int32)
        self.skipped = len(self.records) - len(self._good)
        if not len(self._good):
            raise BadInput(
                f"none of the {len(self.records)} photos can be decoded; the first should be {self._first()}"
            )
        self._hash = hashlib.sha256(f"{self.records.fingerprint()} {file_hash(good)}".encode()).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._good)

    def fingerprint(self) -> str:
        """A hash of the metadata, the size and which photos are there; not of what is on the photos."""
        return self._hash

    def times(self, start: int, stop: int) -> np.ndarray:
        """When the photos were taken, as the metadata has it."""
        return self.records.column("time", np.array(self._good[start:stop]))

    def users(self, start: int, stop: int) -> np.ndarray:
        """Whose photos they are, as a hash of what the metadata has."""
        return self.records.column("user", np.array(self._good[start:stop]))

    def _read(self, start: int, stop: int) -> Chunk:
        rows = np.array(self._good[start:stop])
        images: list[np.ndarray] = []
        for i, image in enumerate(self.records.decode(rows)):
            if isinstance(image, str):
                path = self.records.paths(rows[i : i + 1])[0]
                raise BadInput(f"example {start + i}: {path} could be decoded before and cannot now ({image})")
            images.append(image)
        return Chunk(np.stack(images), self.records.column("label", rows).tolist())

    def _first(self) -> Path:
        return self.records.paths(slice(0, 1))[0]


def _try_all(records: ClocRecords, good: Path, progress: Progress | None) -> None:
    """Decodes every photo once and writes the rows of the good ones; a file with a byte a row remembers how far it is."""
    notes = good.with_name(good.name + ".part")
    if not notes.exists():
        write_atomically(notes, bytes(len(records)))
    tried = np.memmap(notes, np.uint8, "r+", shape=(len(records),))  # 0 not tried, 1 good, 2 bad
    skipped = 0
    for start in range(0, len(records), TRIED_AT_ONCE):
        rows = slice(start, min(start + TRIED_AT_ONCE, len(records)))
        if not tried[rows].all():
            tried[rows] = [2 if isinstance(image, str) else 1 for image in _one_by_one(records, rows)]
            tried.flush()
        skipped += int(np.count_nonzero(tried[rows] == 2))
        if progress:
            progress(rows.stop, len(records), skipped)
    write_atomically(good, np.flatnonzero(tried == 1).astype("<i4").tobytes())
    notes.unlink()


def _one_by_one(records: ClocRecords, rows: slice) -> Iterator[np.ndarray | str]:
    """The photos without keeping them all in memory."""
    return records.decoder(records.paths(rows), (records.size, records.size), False)


# From the official metadata to arrays on disk.


def convert_metadata(source: str | Path, folder: str | Path) -> None:
    """Turns the official metadata into arrays on disk, ordered by time, which `ClocStream` opens in no time.

    Parameters
    ----------
    source
        A text file with a photo a line, a .npz file, or a folder of .torchSave files. The last are read by PyTorch's
        reader for plain data, which refuses anything that would run code, and are in memory as a whole meanwhile.
    folder
        Where the arrays go.
    """
    source, folder = Path(source), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(source)
    written, classes = 0, 0
    files = {name: (folder / name).open("wb") for name in (*COLUMNS, "paths")}
    try:
        for label, time, user, paths in parts:
            if len(label) and label.min() < 0:
                raise BadInput(f"{source}: row {int(label.argmin())} has class {label.min()}, expected 0 or more")
            texts = [path.strip().encode() for path in paths]
            sizes = np.array([len(text) for text in texts], np.int64)
            begins = files["paths"].tell() + np.cumsum(sizes) - sizes
            values = {"label": label, "time": time, "user": _user_numbers(user), "begin": begins, "size": sizes}
            for name, dtype in COLUMNS.items():
                files[name].write(np.ascontiguousarray(values[name]).astype(dtype).tobytes())
            files["paths"].write(b"".join(texts))
            written += len(texts)
            classes = max(classes, int(label.max(initial=-1)) + 1)
    finally:
        for file in files.values():
            file.close()
    if not written:
        raise BadInput(f"{source} has no rows")
    _sort(folder, written)
    found = file_hash(*(folder / name for name in (*COLUMNS, "paths")))
    index = {"format": FORMAT, "rows": written, "classes": classes, "sha256": found}
    write_atomically(folder / "index.json", (json.dumps(index, indent=1) + "\n").encode())


def _converted(metadata: Path, converted: str | Path | None) -> Path:
    """The folder with the arrays of this metadata, made if need be."""
    if (metadata / "index.json").exists():
        found = json.loads((metadata / "index.json").read_text()).get("format")
        if found != FORMAT:
            raise BadInput(f"{metadata / 'index.json'} has format {found!r}, expected {FORMAT!r}")
        return metadata
    files = [_torch_file(metadata, name) for name in TORCH] if metadata.is_dir() else [metadata]
    for file in files:
        if not file.is_file():
            raise BadInput(
                f"{file} does not exist; CLOC's metadata is a text file, a .npz file or a folder with {file.name}"
            )
    folder = Path(converted) if converted else cache_folder() / f"cloc-{file_hash(*files)[:16]}"
    if not (folder / "index.json").exists():
        convert_metadata(metadata, folder)
    return folder


def _parts(source: Path) -> Iterable[tuple[np.ndarray, np.ndarray, Sequence[Any], Sequence[str]]]:
    """Classes, times, users and paths, some rows at a time."""
    if source.is_dir():
        return _slices(source, {name: _load_torch(_torch_file(source, name)) for name in TORCH})
    if source.suffix == ".npz":
        try:
            with np.load(source, allow_pickle=False) as file:
                return _slices(source, {name: file[name] for name in TORCH})
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"{source} cannot be read: {error}; expected the arrays {', '.join(TORCH)}") from None
    return _lines(source)


def _lines(source: Path) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[Any], Sequence[str]]]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    with source.open() as file:
        count = len(file.readline().split(","))
    if count < 4:
        raise BadInput(f"{source} has {count} columns, expected at least 4: class, time, user, path")
    time = 1 if count == 4 else 2  # the longer form has the date before the time
    types = {"f0": pa.int32(), f"f{time}": pa.int64(), f"f{time + 1}": pa.string(), f"f{count - 1}": pa.string()}
    try:
        reader = pacsv.open_csv(
            source,
            read_options=pacsv.ReadOptions(autogenerate_column_names=True, block_size=1 << 24),
            convert_options=pacsv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=False
            ),
        )
        for batch in reader:
            for column, kind in zip(batch.columns[:2], ("class", "time"), strict=True):
                if column.null_count:
                    raise BadInput(f"{source}: a row has no {kind}")
            yield batch[0].to_numpy(), batch[1].to_numpy(), batch[2].to_pylist(), batch[3].to_pylist()
    except pa.ArrowInvalid as error:
        raise BadInput(f"{source} cannot be read: {error}") from None


def _slices(source: Path, columns: dict[str, Any]) -> Iterator[tuple[np.ndarray, np.ndarray, Any, Any]]:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise BadInput(f"{source} has columns of different length: {told}")
    for start in range(0, sizes["label"], ROWS):
        part = {name: column[start : start + ROWS] for name, column in columns.items()}
        users = part["user"].tolist() if hasattr(part["user"], "tolist") else part["user"]
        yield np.asarray(part["label"], np.int64), np.asarray(part["time"], np.int64), users, list(part["path"])


def _torch_file(folder: Path, name: str) -> Path:
    path = folder / f"train_{TORCH[name]}.torchSave"
    older = folder / "train_user.torchSave"
    return older if name == "user" and older.exists() and not path.exists() else path


def _load_torch(path: Path) -> Any:
    import pickle  # only to name the error that PyTorch's reader of plain data raises

    import torch
    from numpy._core.multiarray import _reconstruct

    arrays = [np.ndarray, np.dtype, type(np.dtype(np.int64)), type(np.dtype(np.int32))]  # plain data as well
    made_by = [(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals([*arrays, *made_by]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise BadInput(
            f"{path} holds more than lists, tensors and arrays; it was not read, as that could run code"
        ) from None
    except (OSError, RuntimeError, EOFError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def _user_numbers(users: Sequence[Any]) -> np.ndarray:
    """A number for each user: a hash of the text, the same for 123 and "123"."""
    numbers: dict[str, int] = {}
    found = []
    for user in users:
        text = str(user)
        if text not in numbers:
            numbers[text] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        found.append(numbers[text])
    return np.array(found, np.int64)


def _open(path: Path, dtype: str, rows: int) -> np.ndarray:
    found, expected = path.stat().st_size, rows * np.dtype(dtype).itemsize
    if found != expected:
        raise BadInput(f"{path} has {found} bytes, expected {expected}; delete the folder to have it made again")
    return np.memmap(path, dtype, "r")


def _sort(folder: Path, rows: int) -> None:
    """Puts the rows in the order of their times; rows of the same time stay as they were."""
    time = _open(folder / "time", COLUMNS["time"], rows)
    if all((np.diff(time[start : start + ROWS + 1]) >= 0).all() for start in range(0, rows, ROWS)):
        return
    order = np.argsort(time, kind="stable")
    for name, dtype in COLUMNS.items():
        column = np.array(_open(folder / name, dtype, rows))
        write_atomically(folder / name, column[order].tobytes())
