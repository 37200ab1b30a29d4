"""Split-EMNIST: tasks of random characters, from the official EMNIST Balanced files or a .npz file."""

from __future__ import annotations

import gzip
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prequential.errors import BadInput
from prequential.streams.cache import cached_array, file_hash
from prequential.streams.datasets.download import given_or_downloaded
from prequential.streams.formats.arrays import load_npz
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.tasks import SplitStream, checked_images

URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"
PARTS = ("train", "test")


def split_emnist(
    path: str | Path | None = None,
    *,
    tasks: int = 100,
    ways: int = 10,
    task_length: int = 1000,
    seed: int = 0,
    download: bool = False,
    max_bytes: int | None = None,
) -> SplitStream:
    """The paper's Split-EMNIST: each task has other characters out of 47 and another map from character to label.

    Parameters
    ----------
    path
        The official gzip.zip, a folder with the emnist-balanced-*-ubyte files (also .gz), or a .npz file with `x` (n,
        28, 28) and `y47` (or `y`). Train and test images make up one pool, as nothing is held out in a stream.
    tasks, ways, task_length, seed
        As in `SplitStream`.
    download
        Fetches the official file (536 MiB) into the cache folder when no path is given.
    max_bytes
        How many bytes each of the four files, or a compressed .npz file, may unpack to; see `streams.limits`.
    """
    file = given_or_downloaded(path, download, of="EMNIST", url=URL, name="emnist-gzip.zip", md5=MD5)
    x, y = load_emnist(file, max_bytes)
    return SplitStream(x, y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)


def load_emnist(path: Path, max_bytes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The images (n, 28, 28) uint8, upright, and their classes 0..46; memory-mapped from a copy in the cache."""
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix.lower() == ".npz":
        return _from_npz(path, max_bytes)
    with reading(path):
        name, parts = _official(path, max_bytes)

    def read(key: str, dimensions: int) -> np.ndarray:
        try:
            array = read_idx(parts[key]())
        except BadInput as error:
            raise BadInput(f"{path}: emnist-balanced-{key}-ubyte: {error}") from None
        except Exception as error:  # what damaged archives make their readers raise
            raise BadInput(f"{path}: emnist-balanced-{key}-ubyte cannot be unpacked: {reason(error)}") from error
        if array.ndim != dimensions:
            raise BadInput(f"{path}: emnist-balanced-{key}-ubyte has {array.ndim} dimensions, expected {dimensions}")
        return array

    def images() -> np.ndarray:
        # the official images are stored column by column
        return np.concatenate([read(f"{part}-images-idx3", 3) for part in PARTS]).transpose(0, 2, 1).copy()

    def classes() -> np.ndarray:
        return np.concatenate([read(f"{part}-labels-idx1", 1) for part in PARTS])

    x, y = cached_array(f"emnist-x-{name}", images), cached_array(f"emnist-y-{name}", classes)
    return checked_images(path, x, y, shape=(28, 28), classes=47)


def read_idx(data: bytes) -> np.ndarray:
    """The array of unsigned bytes in an idx file."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise BadInput(f"an idx file begins with {data[:3].hex()}, expected 000008 (unsigned bytes)")
    if len(data) < 4 + 4 * data[3]:
        raise BadInput(f"an idx file has {len(data)} bytes, expected at least {4 + 4 * data[3]}")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", data[3], 4))
    found, expected = len(data) - 4 - 4 * len(shape), math.prod(shape)
    if found != expected:
        raise BadInput(f"an idx file of shape {shape} holds {found} values, expected {expected}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _official(path: Path, max_bytes: int | None) -> tuple[str, dict[str, Callable[[], bytes]]]:
    """What the files are, for the name of the unpacked copy, and how each of the four is read."""
    wanted = [f"{part}-{kind}" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
    readers: dict[str, Callable[[], bytes]] = {}
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        for key in wanted:
            found = [name for name in names if Path(name).name.startswith(f"emnist-balanced-{key}-ubyte")]
            if found:
                readers[key] = _zip_reader(path, found[0], Limit(path, max_bytes=max_bytes))
        files = [path]
    else:
        folder = path if path.is_dir() else path.parent
        files = []
        for key in wanted:
            found_files = sorted(folder.rglob(f"emnist-balanced-{key}-ubyte*"))
            if found_files:
                readers[key] = _file_reader(found_files[0], Limit(found_files[0], max_bytes=max_bytes))
                files.append(found_files[0])
    for key in wanted:
        if key not in readers:
            raise BadInput(f"{path} holds no emnist-balanced-{key}-ubyte[.gz]; expected it beside three others like it")
    return file_hash(*files)[:32], readers


def _zip_reader(path: Path, name: str, limit: Limit) -> Callable[[], bytes]:
    def read() -> bytes:
        with zipfile.ZipFile(path) as archive:
            limit.check(name, archive.getinfo(name).file_size)
            with archive.open(name) as file:
                return limit.read(name, gzip.open(file) if name.endswith(".gz") else file)  # type: ignore[arg-type]

    return read


def _file_reader(path: Path, limit: Limit) -> Callable[[], bytes]:
    def read() -> bytes:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return limit.read(path.name, file)  # type: ignore[arg-type]

    return read


def _from_npz(path: Path, max_bytes: int | None) -> tuple[np.ndarray, np.ndarray]:
    arrays = load_npz(path, max_bytes)
    y = arrays.get("y47", arrays.get("y"))
    if "x" not in arrays or y is None:
        raise BadInput(f"{path} holds {', '.join(arrays)}, expected x and y47")
    x = arrays["x"]
    if not isinstance(x, np.memmap):  # compressed: one unpacked copy serves all processes
        x = cached_array(f"emnist-x-{file_hash(path)[:32]}", lambda: arrays["x"])
    return checked_images(path, x, y, shape=(28, 28), classes=47)
