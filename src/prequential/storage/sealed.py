"""Small JSON and TOML files with a checksum: written whole, and read back as they were written or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint, BadInput
from prequential.storage.files import open_own, write_atomically

_END = re.compile(rb'"[0-9a-f]{64}"\s*}\s*\Z')  # how a sealed file ends, whatever has become of the name
_LINE = re.compile(rb"# sha256 ([0-9a-f]{64}) of what follows; without this line it is taken as it is\n")
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
    old = expected is None and str(content.get("format", "-1")).endswith("-1")
    if old and not _END.search(data):  # from before there were checksums
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
    plain = json.loads(json.dumps(content))  # as it is read again: keys are texts, in the order of texts
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """As `read_sealed`, for what is no checkpoint: damage is a `BadInput`, and a missing file a `FileNotFoundError`."""
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(path)
    try:
        return read_sealed(path)
    except BadCheckpoint as error:
        raise BadInput(str(error)) from None


def sealed_toml(text: str) -> bytes:
    """The text of a TOML file behind a line with its checksum."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f"# sha256 {checksum} of what follows; without this line it is taken as it is\n{text}".encode()


def check_toml(path: Path) -> None:
    """Refuses a TOML file that is empty or not what its first line says; one without such a line is taken as it is."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    if not data.strip():
        raise BadInput(f"{path} is empty")
    line = _LINE.match(data)
    if line and hashlib.sha256(data[line.end() :]).hexdigest() != line.group(1).decode():
        raise BadInput(
            f"{path} is damaged or was edited: it does not match the checksum in its first line, without which "
            "it is taken as it is"
        )


def is_damaged(path: Path) -> bool:
    """Whether there is a TOML file that is empty, unreadable, or not what its first line says."""
    try:
        if path.exists():
            check_toml(path)
            tomllib.loads(path.read_text())
    except (BadInput, ValueError, OSError, RecursionError):
        return True
    return False
