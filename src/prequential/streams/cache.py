"""Fingerprints of files, and copies that can always be made again: unpacked arrays and sorted tables."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

WHOLE = 2**30  # bytes up to which a file's fingerprint covers all of it
PIECE = 2**20


def cache_folder() -> Path:
    """Where such copies are kept: PREQUENTIAL_CACHE, or the user's cache folder. It may be emptied at any time."""
    if given := os.environ.get("PREQUENTIAL_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prequential"


def scratch_file() -> Path:
    """A new empty file in the cache folder, for what a process needs while it runs."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".scratch-", dir=folder)
    except OSError:
        handle, name = tempfile.mkstemp(prefix="prequential-")
    os.close(handle)
    return Path(name)


def file_hash(*paths: Path) -> str:
    """A hash of the content of these files, in this order; neither their names nor their dates matter.

    Of files that are larger than 1 GiB together, their sizes and 1024 pieces of 1 MiB, evenly spread, are hashed, so
    that opening a large stream takes a second and not minutes.
    """
    digest = hashlib.sha256()
    sizes = [path.stat().st_size for path in paths]
    step = max(PIECE, -(-sum(sizes) // (WHOLE // PIECE)))
    for path, size in zip(paths, sizes, strict=True):
        digest.update(f"{size} ".encode())
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                digest.update(file.read(PIECE))
            if step > PIECE and size:
                file.seek(max(0, size - PIECE))
                digest.update(file.read(PIECE))
    return digest.hexdigest()


def file_stamp(*paths: Path) -> str:
    """A hash of the sizes and the times of change of these files.

    For the names of copies, beside `file_hash`: where that only samples, an edit would go unnoticed and an old copy be
    read. Not for fingerprints, which a copied or touched file must keep.
    """
    facts = [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def array_hash(*arrays: Any, rows: int = 1024) -> str:
    """A hash of arrays, read in blocks of rows so that a memory map is never loaded.

    Anything that can be indexed by an array of integers will do. Of one that is larger than 1 GiB, evenly spread
    blocks of rows that make up 1 GiB are hashed.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{len(array)} ".encode())
        starts = np.arange(0, len(array), rows)
        size = np.asarray(array[np.arange(min(rows, len(array)))]).nbytes * len(starts)
        for start in starts[:: max(1, -(-size // WHOLE))]:
            block = np.asarray(array[np.arange(start, min(start + rows, len(array)))])
            if block.dtype.kind == "O":
                digest.update("\x1f".join(map(repr, block.tolist())).encode())
            else:
                digest.update(f"{block.dtype.str} {block.shape} ".encode())
                digest.update(np.ascontiguousarray(block).tobytes())
    return digest.hexdigest()


def cached_array(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array that `make` gives: made once, then memory-mapped from the cache.

    The name must say everything the array depends on. Where nothing can be written the array stays in memory.
    """
    path = cache_folder() / f"{name}.npy"
    if path.exists():
        with suppress(ValueError, OSError, EOFError):  # a damaged copy is made again
            return _mapped(path)
    array = make()

    def write(to: Path) -> None:
        with to.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    try:
        write_and_rename(path, write)
    except OSError:
        return array
    return _mapped(path)


def cached_file(name: str, write: Callable[[Path], None]) -> Path:
    """The file of the cache that `write` writes: made once. The name must say everything it depends on."""
    path = cache_folder() / name
    if not path.exists():
        write_and_rename(path, write)
    return path


def write_and_rename(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a file beside and then moves it to its place, so that nobody ever meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _mapped(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
