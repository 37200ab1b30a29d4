"""Images some of which may be bad: what `extract` reads from, whatever kind of stream they come from."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from prequential.errors import BadInput
from prequential.streams.stream import Stream

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory: another one in each process


class Records(Protocol):
    """A sequence of labeled images that may fail one by one; `ClocRecords` is one, and `records` makes one of a stream.

    It may also have `columns(start, stop)`: what else is known of its examples, as arrays by name (time, user), and
    `task_starts()` as a stream has; both are kept with the features.
    """

    def __len__(self) -> int:
        """The number of images, bad ones included."""

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, Sequence[Hashable], dict[int, str]]:
        """The good images of start..stop-1, their labels, and what is wrong with each bad one, by position."""

    def fingerprint(self) -> str:
        """A short text that changes whenever the images or their order change."""


class StreamRecords:
    """The examples of a stream as records: those that cannot be read are separated from the others.

    Parameters
    ----------
    stream
        A stream that raises `BadInput` where an example is bad.

    Examples
    --------
    >>> from prequential.streams.formats.arrays import ArrayStream
    >>> records = StreamRecords(ArrayStream(np.array([[1.0], [np.inf], [3.0]]), ["a", "b", "c"]))
    >>> records.attempt(0, 3)[1:]
    (['a', 'c'], {1: 'example 1: feature 0 is inf, expected a finite number'})
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.classes = stream.classes
        self.skipped = int(getattr(stream, "skipped", 0))  # left out by the stream itself

    def __len__(self) -> int:
        return len(self.stream)

    def fingerprint(self) -> str:
        return self.stream.fingerprint()

    def task_starts(self) -> np.ndarray | None:
        return self.stream.task_starts()

    def columns(self, start: int, stop: int) -> dict[str, np.ndarray]:
        own = getattr(self.stream, "columns", None)
        found: dict[str, np.ndarray] = own(start, stop) if own else {}
        return found

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, list[Hashable], dict[int, str]]:
        stop = min(stop, len(self))
        parts: list[np.ndarray] = []
        labels: list[Hashable] = []
        bad: dict[int, str] = {}
        waiting = [(start, stop)]
        while waiting:  # halves that fail are halved again, so that a stream need not be able to skip
            low, high = waiting.pop()
            try:
                chunk = self.stream.read(low, high)
            except BadInput as error:
                if high - low == 1:
                    bad[low] = str(error)
                else:
                    middle = (low + high) // 2
                    waiting += [(middle, high), (low, middle)]
                continue
            parts.append(chunk.x)
            labels += chunk.y
        return np.concatenate(parts) if parts else np.empty((0,), np.uint8), labels, bad


def as_records(source: Stream | Records) -> Records:
    """A source as records: itself when it is able to try, else its examples one by one where a range fails."""
    if hasattr(source, "attempt"):
        tried: Any = source
        records: Records = tried
        return records
    assert isinstance(source, Stream)
    return StreamRecords(source)


def check_still_there(source: Stream | Records) -> None:
    """Refuses to continue when the folder of the images is gone: a disk that was taken away is no bad image."""
    owners = (source, getattr(source, "stream", None))
    for place in [getattr(owner, name, None) for owner in owners for name in ("images", "path")]:
        if isinstance(place, Path) and not (place.is_file() or (place.is_dir() and any(place.iterdir()))):
            raise BadInput(f"{place} is gone or empty; start the same extraction again when it is back, and it resumes")


def plain(reason: str) -> str:
    """What is wrong with an image, in words that are the same in every process.

    >>> plain("cannot identify image file <_io.BytesIO object at 0x7f01>")
    'cannot identify image file <_io.BytesIO object>'
    """
    return ADDRESS.sub("", reason)
