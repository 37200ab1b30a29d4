"""The files of a folder of features: its manifest and its shards."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prequential.errors import BadInput
from prequential.storage.files import new_file
from prequential.storage.sealed import read_json
from prequential.streams.formats.encoding import shown
from prequential.streams.limits import reason

FORMAT = "prequential-features-1"
KEYS = ("width", "dtype", "classes", "labels", "rows", "shards", "position", "complete")
SMALL = 64 * 2**20  # bytes up to which the fingerprint of a folder covers all of it
SAMPLES, PIECE = 4, 4096  # of larger ones, so many pieces of so many bytes of each shard


def lock(file: BinaryIO) -> bool:
    """Whether the file is this process's alone until it is closed; believed where files cannot be locked."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / "manifest.json"
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


def write_shard(path: Path, rows: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Writes bare rows as an .npy file under a temporary name, makes it durable, renames it. Its checksum."""
    digest = hashlib.sha256()
    rows.seek(0)
    with new_file(path) as handle, os.fdopen(handle, "w+b", closefd=False) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
        file.seek(0)
        digest.update(file.read())
        while piece := rows.read(1 << 22):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def check_content(path: Path, expected: str | None) -> None:
    """Refuses a file that is not what was written; where no checksum is known, it is taken as it is."""
    try:
        found = checksum(path) if expected is not None else None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    if found is not None and found != expected:
        raise BadInput(
            f"{path} is damaged: its checksum is {found[:12]}…, expected {str(expected)[:12]}…; extract these "
            "features anew"
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
