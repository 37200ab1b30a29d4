"""CLOC's official metadata, turned into arrays on disk that are opened in no time and take no memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.storage.files import write_atomically
from prequential.streams.cache import cache_folder
from prequential.streams.datasets.cloc_lines import FIELDS, MOST_CLASSES, check_first_line, what_is_wrong
from prequential.streams.formats.arrays import load_npz
from prequential.streams.formats.encoding import shown
from prequential.streams.limits import Limit, reading, reason

FORMAT = "prequential-cloc-1"
COLUMNS = {"label": "<i4", "time": "<i8", "user": "<i8", "begin": "<i8", "size": "<u2"}  # of the arrays on disk
TORCH = {"label": "labels", "time": "time", "user": "userID", "path": "store_loc"}
ROWS = 1 << 18  # handled at once when converting


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
            wrong = np.flatnonzero((label < 0) | (label > MOST_CLASSES))
            if len(wrong):
                raise BadInput(
                    f"{source}, row {written + int(wrong[0]) + 1}: the class is {label[wrong[0]]}, expected a "
                    "whole number in "
                    f"0..{MOST_CLASSES}"
                )
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
    found = whole_hash(*(folder / name for name in (*COLUMNS, "paths")))
    index = {
        "format": FORMAT,
        "rows": written,
        "classes": classes,
        "sha256": found,
        "source": whole_hash(*_files(source)),
    }
    write_atomically(folder / "index.json", (json.dumps(index, indent=1) + "\n").encode())


def converted_metadata(metadata: Path, converted: str | Path | None) -> Path:
    """The folder with the arrays of this metadata, made if need be."""
    if (metadata / "index.json").exists():
        return metadata
    if not metadata.exists():
        raise BadInput(
            f"{metadata} does not exist; expected CLOC's metadata: a text file with a line {FIELDS} a photo, a "
            ".npz file "
            f"with the arrays {', '.join(TORCH)}, or a folder with train_labels.torchSave and its like"
        )
    files = _files(metadata)
    for file in files:
        if not file.is_file():
            names = ", ".join(file.name for file in files)
            raise BadInput(f"the folder {metadata} holds no {file.name}; expected CLOC's metadata in it: {names}")
    source = whole_hash(*files)
    folder = Path(converted) if converted else cache_folder() / f"cloc-{source[:16]}"
    if not (folder / "index.json").exists():
        with _status(f"turning {metadata} into arrays in {folder}, once"):
            if converted:
                convert_metadata(metadata, folder)
            else:
                _convert_into_cache(metadata, folder)
    made_from = read_index(folder).get("source", source)
    if made_from != source:
        raise BadInput(
            f"{folder} was made from metadata with checksum {made_from[:12]}…, and {metadata} has {source[:12]}…; "
            "delete that folder to have it made again, or name another"
        )
    return folder


def read_index(folder: Path) -> dict[str, Any]:
    """What index.json says of the arrays: how many rows, how many classes, a hash of them all."""
    path = folder / "index.json"
    try:
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = index.get("format")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}; delete the folder to have it made again") from None
    if found != FORMAT:
        raise BadInput(f"{path} has format {shown(found)}, expected {FORMAT!r}")
    for name, kind in {"rows": int, "classes": int, "sha256": str}.items():
        if type(index.get(name)) is not kind or (kind is int and not 0 < index[name] < 2**48):
            raise BadInput(f"{path}: {name} is {shown(index.get(name))}; delete the folder to have it made again")
    return index


def _files(metadata: Path) -> list[Path]:
    return [_torch_file(metadata, name) for name in TORCH] if metadata.is_dir() else [metadata]


def _convert_into_cache(metadata: Path, folder: Path) -> None:
    """Several processes may do this at once: each makes its own folder, and one of them is kept."""
    own = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        convert_metadata(metadata, own)
        try:
            own.replace(folder)
        except OSError:
            if not (folder / "index.json").exists():
                raise
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _status(what: str) -> Any:
    """Says on a terminal what takes long."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what, spinner="line")


def whole_hash(*paths: Path) -> str:
    """A hash of everything in these files, in this order: 39 million rows take a few seconds."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def _parts(source: Path) -> Iterable[tuple[np.ndarray, np.ndarray, Sequence[Any], Sequence[str]]]:
    """Classes, times, users and paths, some rows at a time."""
    if source.is_dir():
        return _slices(source, {name: _load_torch(_torch_file(source, name)) for name in TORCH})
    if source.suffix == ".npz":
        arrays = load_npz(source, names=tuple(TORCH))
        for name in TORCH:
            if name not in arrays:
                raise BadInput(f"{source} has no array {name!r}; expected the arrays {', '.join(TORCH)}")
            if arrays[name].ndim != 1:
                raise BadInput(f"{source}: {name} has shape {arrays[name].shape}, expected one value for each photo")
        return _slices(source, arrays)
    return _lines(source)


def _lines(source: Path) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[Any], Sequence[str]]]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    count = check_first_line(source)
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
            batch.validate(full=True)
            label = batch[0].to_numpy(zero_copy_only=False)
            if batch[0].null_count or batch[1].null_count or (len(label) and label.min() < 0):
                raise BadInput(what_is_wrong(source, count) or f"{source}: a photo has no class or no time")
            yield label, batch[1].to_numpy(), batch[2].to_pylist(), batch[3].to_pylist()
    except pa.ArrowInvalid as error:
        told = str(error).splitlines()[0]
        raise BadInput(what_is_wrong(source, count) or f"{source} cannot be read: {told}") from None


def _slices(source: Path, columns: dict[str, Any]) -> Iterator[tuple[np.ndarray, np.ndarray, Any, Any]]:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise BadInput(f"{source} has columns of different length: {told}")
    for start in range(0, sizes["label"], ROWS):
        part = {name: column[start : start + ROWS] for name, column in columns.items()}
        users = part["user"].tolist() if hasattr(part["user"], "tolist") else part["user"]
        yield _whole(source, part, "label"), _whole(source, part, "time"), users, list(part["path"])


def _whole(source: Path, part: dict[str, Any], name: str) -> np.ndarray:
    found = np.asarray(part[name])
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise BadInput(f"{source}: {name} holds {found.dtype} {found.shape}, expected a whole number for each photo")
    return found.astype(np.int64)


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
    size = path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                Limit(path).check(path, sum(info.file_size for info in archive.infolist()))
        with torch.serialization.safe_globals([*arrays, *made_by]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise BadInput(
            f"{path} holds more than lists, tensors and arrays; it was not read, as that could run code"
        ) from None
    except BadInput:
        raise
    except Exception as error:  # what damaged files make PyTorch's reader raise
        raise BadInput(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(found, list | tuple | torch.Tensor | np.ndarray) or getattr(found, "ndim", 1) != 1:
        raise BadInput(
            f"{path} holds {shown(found)}, expected a list, a tensor or an array of one value for each photo"
        )
    if len(found) > size:  # a tensor may repeat one number without end
        raise BadInput(f"{path} holds {len(found)} values in {size} bytes")
    return found


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


def open_column(path: Path, dtype: str, rows: int) -> np.ndarray:
    with reading(path):
        found, expected = path.stat().st_size, rows * np.dtype(dtype).itemsize
    if found != expected:
        raise BadInput(f"{path} has {found} bytes, expected {expected}; delete the folder to have it made again")
    return np.memmap(path, dtype, "r")


def _sort(folder: Path, rows: int) -> None:
    """Puts the rows in the order of their times; rows of the same time stay as they were."""
    time = open_column(folder / "time", COLUMNS["time"], rows)
    if all((np.diff(time[start : start + ROWS + 1]) >= 0).all() for start in range(0, rows, ROWS)):
        return
    order = np.argsort(time, kind="stable")
    for name, dtype in COLUMNS.items():
        column = np.array(open_column(folder / name, dtype, rows))
        write_atomically(folder / name, column[order].tobytes())
