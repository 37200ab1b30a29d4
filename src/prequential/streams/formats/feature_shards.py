"""The files of a folder of features: its manifest and its shards."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.storage.files import new_file, open_own, write_all
from prequential.storage.platforms import CLOEXEC, DIRECTORY, FOLDERS_HAVE_HANDLES, lock, pread
from prequential.storage.sealed import read_json
from prequential.streams.formats.encoding import shown
from prequential.streams.limits import reason

FORMAT = "prequential-features-1"
KEYS = ("width", "dtype", "classes", "labels", "rows", "shards", "position", "complete")
SMALL = 64 * 2**20  # bytes up to which the fingerprint of a folder covers all of it
SAMPLES, PIECE = 4, 4096  # of larger ones, so many pieces of so many bytes of each shard


class FolderLock:
    """One writer at a time in a folder: a lock on the folder itself, so that no file is left for it.

    It is freed when its process ends, however it ends. Where folders cannot be locked, it is believed to be free.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._handle: int | None = None

    def take(self) -> None:
        """Takes the lock, if it is not held already; refuses where another writer has it."""
        if self._handle is not None:
            return
        if not FOLDERS_HAVE_HANDLES:
            return
        handle = os.open(self.directory, os.O_RDONLY | DIRECTORY | CLOEXEC)
        try:
            lock(handle)
        except BlockingIOError:
            os.close(handle)
            raise BadInput(f"{self.directory} is being written by another process") from None
        except OSError:  # a file system without locks
            pass
        self._handle = handle

    def free(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.free()


class PartFile:
    """The bare rows of a shard that is being written.

    Parameters
    ----------
    path
        The file; made if it is not there.
    dtype, width
        Of the numbers in a row, and how many there are; no width for single numbers.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int | None = None) -> None:
        self.path, self.dtype, self.width = path, dtype, width
        self.rows = 0  # those that count
        self.hash = hashlib.sha256()  # of these
        self._row = dtype.itemsize * (width or 1)
        self._handle: int | None = open_own(path, os.O_RDWR | os.O_CREAT)

    @property
    def handle(self) -> int:
        assert self._handle is not None
        return self._handle

    def load(self, rows: int) -> str | None:
        """Takes so many rows of the file as written, and gives their checksum; None where it has fewer."""
        if os.fstat(self.handle).st_size < rows * self._row:
            return None
        self.hash, self.rows = hashlib.sha256(), rows
        for piece in self._pieces():
            self.hash.update(piece)
        return self.hash.hexdigest()

    def _pieces(self) -> Iterator[bytes]:
        """The bytes of all rows."""
        offset, stop = 0, self.rows * self._row
        while offset < stop and (piece := pread(self.handle, min(stop - offset, 1 << 22), offset)):
            yield piece
            offset += len(piece)

    def write(self, array: np.ndarray) -> None:
        """Adds rows; they count only when `rows` says so."""
        write_all(self.handle, array.tobytes(), self.rows * self._row)

    def count(self, array: np.ndarray) -> None:
        """Counts rows that were written."""
        self.hash.update(array.data)
        self.rows += len(array)

    def clear(self) -> None:
        self.hash, self.rows = hashlib.sha256(), 0
        self.truncate()

    def truncate(self) -> None:
        """Cuts off what does not count."""
        os.ftruncate(self.handle, self.rows * self._row)

    def sync(self) -> None:
        os.fsync(self.handle)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # else it could not be opened
            self.close()

    def make_shard(self, path: Path) -> str:
        """Writes the rows as an .npy file under a temporary name, makes it durable, renames it. Its checksum."""
        shape = (self.rows,) if self.width is None else (self.rows, self.width)
        header = npy_header(self.dtype, shape)
        digest = hashlib.sha256(header)
        with new_file(path) as handle:
            write_all(handle, header)
            for piece in self._pieces():
                digest.update(piece)
                write_all(handle, piece)
        return digest.hexdigest()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What an .npy file begins with."""
    data = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(data, described)
    return data.getvalue()


def read_manifest(directory: Path, name: str = "manifest.json") -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        raise BadInput(
            f"{path} does not exist; a folder of features has a manifest.json, x-00000.npy, y-00000.npy and so on"
        )
    manifest = read_json(path)
    found = manifest.get("format")
    if found != FORMAT:
        raise BadInput(f"{path} has format {found!r}, expected {FORMAT!r}")
    for name in KEYS:
        if name not in manifest:
            raise BadInput(f"{path} has no {name!r}; expected {', '.join(KEYS)}")
    _check_manifest(path, manifest)
    return manifest


def _check_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Refuses a manifest whose values are none that were written."""
    if manifest["dtype"] not in ("float16", "float32"):
        raise BadInput(f"{path}: dtype is {shown(manifest['dtype'])}, expected 'float16' or 'float32'")
    for name in ("width", "rows", "position"):
        if not _is_count(manifest[name], 1 if name == "width" else 0):
            raise BadInput(f"{path}: {name} is {shown(manifest[name])}, expected a whole number")
    if not (manifest["labels"] is None or isinstance(manifest["labels"], list)):
        raise BadInput(f"{path}: labels is {shown(manifest['labels'])}, expected a list or null")
    if not (manifest["classes"] is None or isinstance(manifest["classes"], int | list)):
        raise BadInput(f"{path}: classes is {shown(manifest['classes'])}, expected a whole number, a list or null")
    if not isinstance(manifest["shards"], list):
        raise BadInput(f"{path}: shards is {shown(manifest['shards'])}, expected a list")
    for i, shard in enumerate(manifest["shards"]):
        if not isinstance(shard, dict) or not _is_count(shard.get("rows"), 1):
            raise BadInput(f"{path}: shard {i} is {shown(shard)}, expected rows, x and y")
        for kind in ("x", "y"):
            file = shard.get(kind)
            if not isinstance(file, str) or Path(file).name != file or "\0" in file:
                raise BadInput(f"{path}: shard {i} has {kind} {shown(file)}, expected the name of a file beside it")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def check_content(path: Path, expected: str | None) -> None:
    """Refuses a file that is not what was written; where no checksum is known, it is taken as it is."""
    remedy = "delete its folder and extract these features anew"
    try:
        found = checksum(path) if expected is not None else None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    if found != expected:
        raise BadInput(
            f"{path} is damaged: its checksum is {str(found)[:12]}…, expected {str(expected)[:12]}…; {remedy}"
        )


def check_shard(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Where the numbers of a shard begin, after a check that it is the array listed in the manifest."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            found_shape, fortran, found_dtype = np.lib.format.read_array_header_1_0(file)
            offset, size = file.tell(), file.seek(0, os.SEEK_END)
    except Exception as error:  # what a damaged header makes NumPy raise
        raise BadInput(f"{path} cannot be read: {reason(error)}") from error
    if (found_shape, found_dtype, fortran) != (shape, dtype, False):
        raise BadInput(f"{path} is {found_dtype!s:.60} {shown(found_shape)}, expected {dtype} {shape}")
    expected = offset + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise BadInput(f"{path} has {size} bytes, expected {expected}")
    return offset


def shards_hash(paths: Sequence[Path]) -> str:
    """A hash of the sizes of shards and of their content; of more than 64 MiB together, of 4 pieces of each."""
    digest = hashlib.sha256()
    try:
        sizes = [path.stat().st_size for path in paths]
        for path, size in zip(paths, sizes, strict=True):
            digest.update(f"{size} ".encode())
            with path.open("rb", buffering=0) as file:
                for start, length in pieces(size, sum(sizes) <= SMALL):
                    file.seek(start)
                    digest.update(file.read(length))
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def pieces(size: int, whole: bool) -> list[tuple[int, int]]:
    """Which bytes of a shard its fingerprint covers: start and length of each piece."""
    if whole or size <= SAMPLES * PIECE:
        return [(0, size)]
    return [((size - PIECE) * i // (SAMPLES - 1), PIECE) for i in range(SAMPLES)]


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
