"""The examples of a journal as arrays and labels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable
from pathlib import Path

import numpy as np

from prequential.labels import label_text, read_label
from prequential.storage.files import storage
from prequential.streams.journal.format_1 import FILES, OldJournal
from prequential.streams.journal.log import Log
from prequential.streams.journal.reading import Entry, read_block, read_entries
from prequential.streams.stream import Chunk

CACHED = 4096  # texts of labels and the labels they are
_UNKNOWN = object()


class Reader:
    """Turns the records of a log, or of a journal of the first format, into examples.

    Parameters
    ----------
    log
        The log to read.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.shape: tuple[int, ...] | None = None  # of one x, once there is one
        self.dtype = np.dtype(np.float64)
        self.old: OldJournal | None = None  # read in place of the log
        self.labels = LabelCache()

    def chunk(self, start: int, stop: int) -> tuple[Chunk, list[tuple[int, str]]]:
        """The examples start..stop-1 that can be read, and the positions of the others with the reasons."""
        assert self.shape is not None
        if self.old is None:
            with storage(self.log.directory):
                block = read_block(self.log, start, stop, self._x_bytes)
            if block is not None:
                x = block[0].view(self.dtype).reshape(stop - start, *self.shape)
                return Chunk(x, self.labels.decode(block[1])), []
        entries = self.entries(start, stop)
        good = [entry.example for entry in entries if entry.example is not None]
        x = np.frombuffer(bytearray().join(example.x for example in good), self.dtype)
        labels = self.labels.decode([example.label for example in good])
        lost = [(entry.position, entry.reason) for entry in entries if entry.example is None]
        return Chunk(x.reshape(len(good), *self.shape), labels), lost

    def entries(self, start: int, stop: int) -> list[Entry]:
        """What is found at each position."""
        with storage(self.log.directory):
            if self.old is not None:
                return self.old.entries(start, stop)
            return read_entries(self.log, start, stop, self._x_bytes)

    @property
    def _x_bytes(self) -> int:
        assert self.shape is not None
        return math.prod(self.shape) * self.dtype.itemsize

    def fingerprint(self) -> str:
        """A hash of all records."""
        self.log.flush()
        directory, end = self.log.directory, self.log.end if self.old is None else None
        digest = hashlib.sha256(f"{self.shape}{self.dtype}{self.log.length}".encode())
        with storage(directory):
            for name in FILES[::-1] if self.old is not None else ("log.bin",):
                if (directory / name).exists():
                    digest.update(_file_digest(directory / name, end))
        return f"journal-{digest.hexdigest()[:16]}"


class LabelCache:
    """Labels and their texts: the same few occur again and again, and turning one into the other takes a while."""

    def __init__(self) -> None:
        self._labels: dict[bytes, Hashable] = {}
        self._texts: dict[tuple[type, Hashable], bytes] = {}

    def decode(self, texts: list[bytes]) -> list[Hashable]:
        """The labels that texts mean."""
        labels = [self._labels.get(text, _UNKNOWN) for text in texts]
        if _UNKNOWN in labels:
            labels = [self._decode_one(text) for text in texts]
        return labels

    def _decode_one(self, text: bytes) -> Hashable:
        label = self._labels.get(text, _UNKNOWN)
        if label is _UNKNOWN:
            label = read_label(text)
            if len(self._labels) >= CACHED:
                self._labels.clear()
            self._labels[text] = label
        return label

    def encode(self, label: Hashable) -> bytes:
        """The text of a label."""
        kind: type = type(label)
        if kind not in (str, int, bool):  # others may be equal and yet have different texts
            return label_text(label).encode()
        text = self._texts.get((kind, label))
        if text is None:
            text = label_text(label).encode()
            if len(self._texts) >= CACHED:
                self._texts.clear()
            self._texts[kind, label] = text
        return text


def _file_digest(path: Path, size: int | None) -> bytes:
    """The SHA-256 of the first `size` bytes of a file; None: of all of it."""
    digest = hashlib.sha256()
    left = size
    with path.open("rb") as file:
        while block := file.read(1 << 20 if left is None else min(1 << 20, left)):
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.digest()
