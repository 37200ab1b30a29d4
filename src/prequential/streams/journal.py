"""The journal of a live stream: every example that was learnt from, on disk, append-only, re-readable."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from prequential.errors import BadInput
from prequential.files import write_atomically
from prequential.labels import Labels, decode, encode
from prequential.streams.stream import Chunk, Stream

FORMAT = "prequential-journal-1"


class Journal(Stream):
    """An append-only stream on disk: `x.bin` and `y.bin` hold one fixed-size record an example.

    Appending costs two writes and no memory. A record that was cut off by a crash is dropped when the journal is
    opened again. Another learner can be run on it like on any other stream.

    Parameters
    ----------
    directory
        Where it is kept; made if it does not exist.

    Examples
    --------
    >>> import tempfile
    >>> journal = Journal(tempfile.mkdtemp())
    >>> journal.append(np.array([[1.0, 2.0], [3.0, 4.0]]), ["rain", "sun"])
    >>> journal.read(1, 2).y
    ['sun']
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._shape: tuple[int, ...] | None = None
        self._dtype = np.dtype(np.float64)
        self._labels = Labels(2**31 - 1)
        self._x = os.open(self.directory / "x.bin", os.O_RDWR | os.O_CREAT, 0o644)
        self._y = os.open(self.directory / "y.bin", os.O_RDWR | os.O_CREAT, 0o644)
        self._length = 0
        self._open()

    def _open(self) -> None:
        head = self.directory / "journal.json"
        if not head.exists():
            return
        meta = json.loads(head.read_text())
        if meta.get("format") != FORMAT:
            raise BadInput(f"{head} has format {meta.get('format')!r}, expected {FORMAT!r}")
        self._shape, self._dtype = tuple(meta["shape"]), np.dtype(meta["dtype"])
        names = self.directory / "labels.jsonl"
        if names.exists():
            whole = names.read_bytes()
            whole = whole[: whole.rfind(b"\n") + 1]
            os.truncate(names, len(whole))  # a name that was cut off must not be written on to
            self._labels.assign([decode(json.loads(line)) for line in whole.splitlines()])
        length = min(os.fstat(self._x).st_size // self._record, os.fstat(self._y).st_size // 4)
        y = np.frombuffer(os.pread(self._y, 4 * length, 0), np.int32)
        torn = np.flatnonzero(y >= len(self._labels))  # a label whose name was not written in full
        self._length = int(torn[0]) if len(torn) else length
        self.truncate(self._length)

    @property
    def _record(self) -> int:
        assert self._shape is not None
        return math.prod(self._shape) * self._dtype.itemsize

    def __len__(self) -> int:
        return self._length

    @property
    def known(self) -> list[Hashable]:
        """The labels that occur, in the order they first did."""
        return self._labels.known

    def append(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        """Adds examples at the end."""
        if self._shape is None:
            self._shape = x.shape[1:]
            # a vector may be followed by one with fractions or larger numbers; images are all of a kind
            self._dtype = x.dtype if x.ndim > 2 and x.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
            meta = {"format": FORMAT, "shape": list(self._shape), "dtype": str(self._dtype)}
            write_atomically(self.directory / "journal.json", json.dumps(meta).encode())
        known = len(self._labels)
        encoded = {label: encode(label) for label in y if label not in self._labels}  # refuses before anything changes
        slots = np.asarray(self._labels.assign(y), np.int32)
        if len(self._labels) > known:  # names first: a record never refers to a name that is not there
            with open(self.directory / "labels.jsonl", "a") as file:
                file.writelines(json.dumps(encoded[label]) + "\n" for label in self._labels.known[known:])
        _write(self._x, np.ascontiguousarray(x, self._dtype).tobytes(), self._length * self._record)
        _write(self._y, slots.tobytes(), self._length * 4)
        self._length += len(slots)

    def _read(self, start: int, stop: int) -> Chunk:
        assert self._shape is not None
        n = stop - start
        x = np.frombuffer(os.pread(self._x, n * self._record, start * self._record), self._dtype)
        slots = np.frombuffer(os.pread(self._y, n * 4, start * 4), np.int32)
        return Chunk(x.reshape(n, *self._shape), [self._labels[slot] for slot in slots.tolist()])

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` examples."""
        if length > self._length:
            raise BadInput(f"the journal {self.directory} holds {self._length} examples, expected at least {length}")
        if self._shape is not None:
            os.ftruncate(self._x, length * self._record)
            os.ftruncate(self._y, length * 4)
        self._length = length

    def sync(self) -> None:
        """Makes everything appended so far survive a power cut."""
        os.fsync(self._x)
        os.fsync(self._y)
        if (self.directory / "labels.jsonl").exists():
            with open(self.directory / "labels.jsonl", "rb") as file:
                os.fsync(file.fileno())

    def copy(self, directory: str | Path) -> Journal:
        """A journal of its own in another directory, with the same examples."""
        target = Path(directory)
        copy, old = target.with_name(f".{target.name}.copy"), target.with_name(f".{target.name}.old")
        for left_over in (copy, old):
            shutil.rmtree(left_over, ignore_errors=True)
        copy.mkdir(parents=True)
        for name in ("x.bin", "y.bin", "labels.jsonl", "journal.json"):
            if (self.directory / name).exists():
                shutil.copyfile(self.directory / name, copy / name)
        if target.exists():  # at every moment there is a whole journal at its place, or beside it
            target.rename(old)
        copy.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        return Journal(target)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self._shape}{self._dtype}{self._length}".encode())
        for name in ("labels.jsonl", "y.bin", "x.bin"):
            if (self.directory / name).exists():
                with open(self.directory / name, "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"journal-{digest.hexdigest()[:16]}"

    def close(self) -> None:
        if self._x >= 0:
            os.close(self._x)
            os.close(self._y)
            self._x = self._y = -1

    def __del__(self) -> None:
        if hasattr(self, "_y"):
            self.close()


def _write(handle: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
