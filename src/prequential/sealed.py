"""Small JSON files with a checksum: written whole, and read back as they were written or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint
from prequential.files import open_own, write_atomically

LARGEST = 64 * 2**20  # bytes; what is larger is none of ours


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Writes a dict of JSON values, atomically and synced, with a checksum of all of it."""
    write_atomically(path, seal(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """The dict that was written; files from before there were checksums are taken as they are."""
    return unseal(read_small(path), str(path))


def seal(content: dict[str, Any]) -> bytes:
    return json.dumps({**content, "sha256": _checksum(content)}, indent=1).encode()


def unseal(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):  # not JSON, not text
        raise BadCheckpoint(f"{name} is damaged: its {len(data)} bytes are not JSON") from None
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{name} is damaged: it holds a {type(content).__name__}, expected an object")
    expected = content.pop("sha256", None)
    if expected is None and str(content.get("format", "-1")).endswith("-1"):  # from before there were checksums
        return content
    if expected != (found := _checksum(content)):
        raise BadCheckpoint(f"{name} is damaged: its checksum is {found[:12]}…, expected {str(expected)[:12]}…")
    return content


def read_small(path: Path) -> bytes:
    """What is in a file of ours; neither through a symbolic link nor from anything but a file."""
    if path.is_symlink():
        raise BadCheckpoint(f"{path} is a symbolic link, expected a file")
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing")
    try:
        handle = open_own(path, os.O_RDONLY)
        try:
            size = os.fstat(handle).st_size
            if size > LARGEST:
                raise BadCheckpoint(f"{path} has {size} bytes, expected at most {LARGEST}")
            return os.read(handle, size)
        finally:
            os.close(handle)
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
