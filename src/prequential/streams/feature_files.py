"""The files of a folder of features: its manifest and its shards."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prequential.errors import BadInput

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
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        found = manifest.get("format")
    except (ValueError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: {error}") from None
    if found != FORMAT:
        raise BadInput(f"{path} has format {found!r}, expected {FORMAT!r}")
    for name in KEYS:
        if name not in manifest:
            raise BadInput(f"{path} has no {name!r}; expected {', '.join(KEYS)}")
    return manifest


def write_shard(path: Path, rows: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Writes bare rows as an .npy file under a temporary name, makes it durable, renames it. Its checksum."""
    temporary = path.with_name(f".{path.name}.tmp")
    digest = hashlib.sha256()
    rows.seek(0)
    with temporary.open("w+b") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
        file.seek(0)
        digest.update(file.read())
        while piece := rows.read(1 << 22):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return digest.hexdigest()


def check_shard(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Where the numbers of a shard begin, after making sure that it is the array the manifest tells of."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            found_shape, fortran, found_dtype = np.lib.format.read_array_header_1_0(file)
            offset, size = file.tell(), file.seek(0, os.SEEK_END)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if (found_shape, found_dtype, fortran) != (shape, dtype, False):
        raise BadInput(f"{path} is {found_dtype} {found_shape}, expected {dtype} {shape}")
    expected = offset + dtype.itemsize * int(np.prod(shape))
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
