"""The log of a tenant: its events in order, which are the truth; everything else can be made again from them.

An event asks for a prediction, gives a label, or is an example with its label:

    {"event": "ask", "id": ..., "x": ...}
    {"event": "label", "id": ..., "y": ...}
    {"event": "example", "x": ..., "y": ..., "id": ..., "origin": ...}

A tenant's learner is a function of its log: whoever applies the same events in the same order has the same learner, to
the bit. So a log has one writer at a time, and who applies an event has appended it before.

Embedded, the home of the learner is the log: the learner writes each event down (`journal/log.bin` for examples,
`asked/*.bin` for what waits) before it changes, and one sync for many events makes them survive a power cut. A log
elsewhere is appended to first, and the home is then a copy that catches up from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from prequential.learners.transformer.learner import Learner
from prequential.storage.files import storage

Event = dict[str, Any]


class Fenced(Exception):
    """Another process has appended to this log: this one must let go of the tenant."""


class TenantLog(Protocol):
    """A durable sequence of events with one writer."""

    @property
    def position(self) -> int:
        """How many events there are, as far as this process knows."""
        ...

    def append(self, events: list[Event], *, expected: int) -> int:
        """Adds events behind the first `expected` ones; how many there are then. `Fenced` if there are others already.

        When it returns, the events may be applied; when `commit` of what they wrote returns, they are durable.
        """
        ...

    def read(self, start: int) -> Iterator[tuple[int, Event]]:
        """The events from a position on, each with its position, as far as they go now."""
        ...

    def commit_files(self) -> list[Path]:
        """The files to be synced before what was applied so far is acknowledged."""
        ...


class HomeLog:
    """The embedded log: the home of a learner, in which the learner itself writes what it is asked and learns.

    Parameters
    ----------
    learner
        One with a home.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._events = 0  # since it was opened

    @property
    def position(self) -> int:
        return self._events

    def append(self, events: list[Event], *, expected: int) -> int:
        """Counts the events: the learner writes them when it applies them. Nobody else can, as it holds the lock."""
        self._events = expected + len(events)
        return self._events

    def read(self, start: int) -> Iterator[tuple[int, Event]]:
        """Nothing: `Learner.open` has applied all events of the home."""
        return iter(())

    def commit_files(self) -> list[Path]:
        return self.learner.unsynced_files()


def sync_files(paths: set[Path]) -> None:
    """Makes what was written to some files survive a power cut."""
    for path in paths:
        with storage(path):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:  # replaced by one that was synced when it was made
                continue
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)
