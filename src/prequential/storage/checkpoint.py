"""Checkpoints: nested dicts of arrays, tensors and JSON values in one checksummed safetensors file.

Writing is atomic (temporary name, sync, rename); reading executes nothing from the file, allocates nothing that the file does
not hold, and changes nothing when it refuses.

From format 2 on, the metadata holds the state as JSON under "state", with the SHA-256 of that text; each array in it is a reference
with the SHA-256 of its bytes, so that some of the arrays can be read and verified without the others. Format 1, which had one
checksum over everything, is still read; what an older file holds is brought up to date by `migrations`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, PrequentialError, one_line
from prequential.storage.files import refuse_links, remove_temporaries, write_atomically
from prequential.storage.migrations import FORMAT, migrate_checkpoint

NAME = "prequential-checkpoint-"  # followed by the format number
DTYPES = {
    name: np.dtype(kind)
    for name, kind in {
        **{"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8"},
        **{"I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"},
    }.items()
}
Refuse = Callable[[dict[str, Any]], str | None]


@dataclass
class Limits:
    """What a checkpoint may be, so that no file can fill the memory; raise one where it is too small for you."""

    header_bytes: int = 100_000_000
    """Bytes of JSON: names and shapes of arrays, labels and numbers. Other readers of safetensors have the same limit."""
    values: int = 5_000_000
    """Values in that JSON, each of which takes about a hundred bytes of memory."""
    depth: int = 100
    """How deep they may be nested."""
    loading_bytes: int = 2**28
    """What a learner may allocate while it is loaded, however small its file."""
    loading_factor: int = 16
    """And so many times the size of its file on top."""


LIMITS = Limits()


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a state to one file."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_take_arrays(state, "", arrays, checksums=True))
    _check_text(path, text)
    metadata = {"format": f"{NAME}{FORMAT}", "state": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    write_atomically(path, save(arrays, metadata))


def in_one_order(content: bytes) -> bytes:
    """The bytes of a checkpoint with its metadata in alphabetical order: safetensors writes it in any."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


def read_checkpoint(path: Path, only: Iterable[str] | None = None) -> dict[str, Any]:
    """The state that was written to this file; arrays and tensors come back as NumPy arrays.

    Parameters
    ----------
    path
        The file.
    only
        The names at the top of the state that are wanted; the others are not read.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} does not exist")
    try:
        with path.open("rb") as file:
            return _read(file, path, None if only is None else set(only))
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is damaged: {short(error)}") from None


def _read(file: BufferedReader, path: Path, only: set[str] | None) -> dict[str, Any]:
    header, start = _read_header(file, path)
    metadata = header.pop("__metadata__", None) or {}
    version = _version(path, metadata)
    places = _places(header, os.fstat(file.fileno()).st_size - start)
    text, expected = metadata["state"], metadata["sha256"]

    def read_array(name: str) -> np.ndarray:
        dtype, shape, offset = places[name]
        array = np.empty(shape, dtype)  # no larger than what lies in the file
        file.seek(start + offset)
        if array.size and file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise ValueError("it ends too early")
        return array

    if version == 1:  # one checksum over everything
        arrays = {name: read_array(name) for name in places}
        found = _checksum(text, arrays)
    else:
        found = hashlib.sha256(text.encode()).hexdigest()
    if found != expected:
        raise BadCheckpoint(f"{path} is damaged: its checksum is {found[:12]}…, expected {str(expected)[:12]}…")
    _check_text(path, text)
    state: dict[str, Any] = json.loads(text)
    if only is not None:
        state = {name: part for name, part in state.items() if name in only}

    def find(reference: dict[str, Any]) -> np.ndarray:
        name, shape = reference["$array"], reference["shape"]
        if math.prod(shape) != math.prod(places[name][1]) or min(shape, default=0) < 0:
            raise ValueError(f"array {name} has {math.prod(places[name][1])} numbers, expected shape {tuple(shape)}")
        if version == 1:
            return arrays[name].reshape(shape)
        array = read_array(name)
        if _bytes_checksum(array) != reference["sha256"]:
            raise ValueError(f"array {name} does not match its checksum")
        return array.reshape(shape)

    return migrate_checkpoint(_put_arrays(state, find, 0), version)


def _read_header(file: BufferedReader, path: Path) -> tuple[dict[str, Any], int]:
    """The JSON at the beginning of a safetensors file, and where the arrays begin."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header has {length} bytes, expected at most {max(size - 8, 0)}")
    if length > LIMITS.header_bytes:
        raise ValueError(f"its header has {length} bytes, expected at most {LIMITS.header_bytes}")
    text = file.read(length)
    _check_text(path, text)
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, expected names")
    return header, 8 + length


def _check_text(path: Path, text: str | bytes) -> None:
    """Refuses JSON that would fill the memory."""
    marks: Any = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    for what, found, most in (
        ("bytes", len(text), LIMITS.header_bytes),
        ("values", sum(text.count(mark) for mark in marks), LIMITS.values),
    ):
        if found > most:
            raise BadCheckpoint(
                f"{path} has {found} {what} of JSON, expected at most {most}; prequential.storage.checkpoint.LIMITS says how many"
            )


def _version(path: Path, metadata: dict[str, Any]) -> int:
    found = str(metadata.get("format"))
    number = found.removeprefix(NAME)
    if not found.startswith(NAME) or not number.isdecimal() or not 1 <= len(number) <= 4:
        raise BadCheckpoint(f"{path} has format {metadata.get('format')!r}, expected '{NAME}{FORMAT}'")
    if int(number) > FORMAT:
        raise BadCheckpoint(
            f"{path} was made by a later version of prequential: it has format {found!r}, expected up to '{NAME}{FORMAT}'"
        )
    return int(number)


def _places(header: dict[str, Any], size: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Type, shape and offset of each array, after making sure that they fill the file, one behind the other."""
    places, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in DTYPES:
            raise ValueError(f"array {name} has type {dtype!r}, expected one of {', '.join(DTYPES)}")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (*shape, first, last)):
            raise ValueError(f"array {name} has shape {shape}, expected whole numbers")
        if first != end or last - first != math.prod(shape) * DTYPES[dtype].itemsize:
            raise ValueError(f"array {name} has shape {tuple(shape)} of {dtype}, but {last - first} bytes at {first}")
        places[name], end = (DTYPES[dtype], tuple(shape), first), last
    if end != size:
        raise ValueError(f"its arrays have {end} bytes, expected {size}")
    return places


# Loading what was read.

_room: ContextVar[int | None] = ContextVar("room", default=None)  # bytes that may still be allocated; None: any number


@contextmanager
def loading(path: Path, size: int | None = None) -> Iterator[None]:
    """What a learner or a run does with a state that was read: whatever does not fit is one sentence.

    A state can be whole and still be none of ours: keys missing, sizes that the file does not hold. So inside, learners
    may allocate only so much as a file of this size can need (`LIMITS`), and every error says which file it was.

    Parameters
    ----------
    path
        The file the state was read from.
    size
        Its bytes, where they are not those of the file.
    """
    if size is None:
        size = path.stat().st_size if path.is_file() else 0
    token = _room.set(LIMITS.loading_bytes + LIMITS.loading_factor * size)
    try:
        with _bounded():
            yield
    except (PrequentialError, OSError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of a graphics card: nothing is wrong with the file
            raise
        raise BadCheckpoint(f"{path} is damaged or of another version: {short(error)}") from None
    finally:
        _room.reset(token)


def allow(size: float, what: str) -> None:
    """Refuses an allocation of so many bytes where a checkpoint is being loaded whose file is too small for it."""
    room = _room.get()
    if room is None:
        return
    if size > room:
        raise BadCheckpoint(
            f"the checkpoint is too small for {what}: that takes {size:.3g} bytes, expected at most {room}"
        )
    _room.set(room - int(size))


def _bounded() -> Any:
    """Where torch makes tensors inside, their sizes are checked first."""
    import torch
    from torch.overrides import TorchFunctionMode

    makers = {getattr(torch, name) for name in ("empty", "zeros", "ones", "full", "rand", "randn", "eye", "arange")}

    class Bounded(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            named = named or {}
            if function in makers:
                sizes = named.get("size", given[:1] if function is torch.full else given)
                sizes = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
                numbers = [int(n) for n in sizes if isinstance(n, int)]
                if function is torch.eye and len(numbers) == 1:
                    numbers *= 2
                if function is torch.arange:
                    numbers = [max(map(abs, numbers), default=1)]
                allow(4 * math.prod(numbers) + 10_000, f"an array of shape {tuple(numbers)}")
            return function(*given, **named)

    return Bounded()


def short(error: BaseException) -> str:
    """What an error says, on one line and no longer than a sentence."""
    named = isinstance(error, KeyError) or not str(error).strip()
    return one_line(f"{type(error).__name__} {error}" if named else error, 160)


class CheckpointFolder:
    """The newest checkpoints of a run or of a live learner; when the newest is damaged, the one before it is used.

    Parameters
    ----------
    directory
        Where they are kept.
    keep
        How many of them.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2) -> None:
        self.directory, self.keep = Path(directory), keep
        self.used: Path | None = None  # the file that `newest` has read

    def write(self, position: int, state: dict[str, Any]) -> None:
        """Writes the checkpoint of a position and removes those that are no longer needed."""
        refuse_links(self.directory.parent, self.directory)
        write_checkpoint(self.directory / f"{position:012d}.safetensors", state)
        remove_temporaries(self.directory)
        for old in self.paths()[: -self.keep]:
            old.unlink()

    def newest(self, refuse: Refuse | None = None) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest state that can be used (None if there is none), and a sentence on each that could not.

        `refuse` may say why a state that can be read is not one to go on with.
        """
        refused: list[str] = []
        for path in reversed(self.paths()):
            try:
                state = read_checkpoint(path)
            except BadCheckpoint as error:
                refused.append(str(error))
                continue
            try:
                with loading(path):
                    reason = None if refuse is None else refuse(state)
            except BadCheckpoint as error:
                refused.append(str(error))
                continue
            if reason is None:
                self.used = path
                return state, refused
            refused.append(f"{path} does not belong here: {reason}")
        return None, refused

    def paths(self) -> list[Path]:
        """The files, the oldest first."""
        return sorted(self.directory.glob("[0-9]*.safetensors"))


def same_state(a: Any, b: Any) -> bool:
    """Whether two states are equal to the last bit."""
    arrays_a: dict[str, np.ndarray] = {}
    arrays_b: dict[str, np.ndarray] = {}
    text_a, text_b = json.dumps(_take_arrays(a, "", arrays_a)), json.dumps(_take_arrays(b, "", arrays_b))
    return _checksum(text_a, arrays_a) == _checksum(text_b, arrays_b)


def _take_arrays(value: Any, name: str, arrays: dict[str, np.ndarray], *, checksums: bool = False) -> Any:
    """The value with every array replaced by a reference to its name; the arrays are collected."""
    if isinstance(value, dict):
        parts = {str(key): (f"{name}/{key}", part) for key, part in value.items()}
        return {key: _take_arrays(part, inner, arrays, checksums=checksums) for key, (inner, part) in parts.items()}
    if isinstance(value, (list, tuple)):
        return [_take_arrays(part, f"{name}/{i}", arrays, checksums=checksums) for i, part in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "detach"):  # a torch tensor, without importing torch here
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value)
        reference: dict[str, Any] = {"$array": name, "shape": list(value.shape)}
        return {**reference, "sha256": _bytes_checksum(arrays[name])} if checksums else reference
    return value


def _put_arrays(value: Any, find: Callable[[dict[str, Any]], np.ndarray], depth: int) -> Any:
    if depth > LIMITS.depth:
        raise ValueError(f"its values are nested more than {LIMITS.depth} deep")
    if isinstance(value, dict):
        if "$array" in value:
            return find(value)
        return {key: _put_arrays(part, find, depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_put_arrays(part, find, depth + 1) for part in value]
    return value


def _bytes_checksum(array: np.ndarray) -> str:
    """The SHA-256 of the bytes of an array; what they mean is part of it."""
    digest = hashlib.sha256(array.dtype.str.encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _checksum(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
