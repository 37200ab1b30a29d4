"""The log of a tenant: its events in order, which are the truth; everything else can be made again from them.

    {"event": "ask", "id": ..., "x": ..., "log_proba": ..., "asked_at": ..., "num_seen": ..., "time": ...}
    {"event": "label", "id": ..., "y": ..., "time": ...}
    {"event": "example", "id": ..., "x": ..., "y": ..., "time": ...}
    {"event": "examples", "x": ..., "y": [...], "origins": [...] or None, "time": ...}   learned in one call
    {"event": "schema", "schema": ...}   decided by the first row with named fields

A tenant's learner is a function of its log: whoever applies the same events in the same order has the same learner, to
the bit. An event is applied first and then appended, as it says what the prediction was; it counts, and its request is
answered, when it is committed. What was applied but cannot be committed is undone, by going back to a save.

Embedded, the home of the learner is the log: the learner writes each event down (`journal/log.bin` for examples,
`asked/*.bin` for what waits) as it is applied, and one sync for many events makes them survive a power cut. With a log
elsewhere (`NatsLog`), the home is a copy that catches up from it.
"""

from __future__ import annotations

from typing import Any, Protocol

from prequential.learners.transformer.learner import Learner
from prequential.serve.framing import Message
from prequential.serve.group_commit import GroupCommit

Event = dict[str, Any]


class TenantLog(Protocol):
    """A durable sequence of events with one writer."""

    fenced: bool
    """Whether another process has appended to this log: the tenant must be opened again."""

    @property
    def largest(self) -> int | None:
        """Bytes that an event may have; None: any number."""
        ...

    def check(self) -> None:
        """Raises a `Failure` where nothing can be written now."""
        ...

    def append(self, event: Event) -> None:
        """Adds an event that was applied."""
        ...

    def commit(self, replies: list[Message], commits: GroupCommit) -> None:
        """Sends replies when all that was appended so far is durable."""
        ...

    def flush(self) -> int | None:
        """Waits until everything is durable; the position in the log, or None where that did not work."""
        ...


class HomeLog:
    """The embedded log: the home of a learner, in which the learner itself writes what it is asked and learns.

    Parameters
    ----------
    learner
        One with a home.
    """

    fenced = False  # nobody else can write, as the learner holds the lock of its home
    largest: int | None = None

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def check(self) -> None:
        pass

    def append(self, event: Event) -> None:
        pass  # the learner has written it

    def commit(self, replies: list[Message], commits: GroupCommit) -> None:
        commits.commit(set(self.learner.unsynced_files()), replies)

    def flush(self) -> int | None:
        return 0
