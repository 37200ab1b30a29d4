"""The base class of streams: re-readable, chronological sequences of labeled examples, read by position."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput

BLOCK = 64  # examples that iterating over a stream reads at a time


@dataclass(frozen=True)
class Chunk:
    """Consecutive examples of a stream, oldest first."""

    x: np.ndarray  # (n, features) vectors, or (n, height, width[, channels]) images
    y: Sequence[Hashable]  # n labels

    def __len__(self) -> int:
        return len(self.y)


class Stream(ABC):
    """A re-readable, chronological sequence of (x, y).

    A reader is nothing but a position, so any number of them can read at once and none holds examples in memory.
    A new kind of stream is one file with a subclass that says its length, reads a range and gives a fingerprint;
    `prequential.testing.streams.check_stream` checks the rest.

    Examples
    --------
    >>> from prequential import ArrayStream
    >>> stream = ArrayStream([[0.5], [1.5], [2.5]], ["a", "b", "a"])
    >>> stream.read(1, 3).y
    ['b', 'a']
    >>> [(x.tolist(), y) for x, y in stream]
    [([0.5], 'a'), ([1.5], 'b'), ([2.5], 'a')]
    """

    classes: int | Sequence[Hashable] | None = None  # how many labels there can be (or which), where that is known
    missing: bool = False  # whether x may hold NaN for "not measured"
    schema: Any = None  # how columns become x, a `Schema`, where the examples are rows of a table

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abstractmethod
    def _read(self, start: int, stop: int) -> Chunk:
        """The examples start..stop-1, for 0 <= start < stop <= len(self)."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A short text that changes whenever the examples or their order change."""

    def read(self, start: int, stop: int) -> Chunk:
        """The examples start..stop-1; fewer when the stream ends before."""
        stop = min(stop, len(self))
        if not 0 <= start < stop:
            raise BadInput(f"cannot read examples {start} to {stop} of a stream of {len(self)} examples")
        return self._read(start, stop)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Hashable]]:
        """One (x, y) after the other, oldest first; they are read in blocks."""
        start = 0
        while start < self.available(start + BLOCK):
            chunk = self.read(start, start + BLOCK)
            yield from zip(chunk.x, chunk.y, strict=True)
            start += len(chunk)

    def available(self, stop: int) -> int:
        """How many examples can be read, after all before `stop` were fetched where a stream fetches them one by one.

        Most streams know their length from the start. One that finds it out overrides this.
        """
        return len(self)

    def task_starts(self) -> np.ndarray | None:
        """The positions where tasks begin, for scoring only; None when the stream knows no tasks.

        Learners are never given these.
        """
        return None


def in_reading_order(paths: Iterable[Path]) -> list[Path]:
    """Files in natural order: part-2 before part-10.

    >>> [str(path) for path in in_reading_order([Path("p10"), Path("p2"), Path("p1")])]
    ['p1', 'p2', 'p10']
    """

    def key(path: Path) -> list[tuple[int, int | str]]:
        pieces = re.split(r"(\d+)", str(path))
        return [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in pieces]

    return sorted(paths, key=key)


class CausalView(Stream):
    """A view of a stream up to the current position; reading beyond it is an error.

    Learners replay from such a view, so a replayed example can never lie in the future.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.classes = stream.classes
        self.missing, self.schema = stream.missing, stream.schema
        self.present = 0  # examples before this position may be read

    def __len__(self) -> int:
        return self.present

    def _read(self, start: int, stop: int) -> Chunk:
        return self.stream.read(start, stop)

    def read(self, start: int, stop: int) -> Chunk:
        if stop > self.present:
            raise BadInput(f"replay asked for examples {start} to {stop}, but the present is at {self.present}")
        return super().read(start, stop)

    def fingerprint(self) -> str:
        return self.stream.fingerprint()
