"""What keeps a learner whole: locks between threads, and Ctrl-C put off while it changes."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from prequential.errors import BadInput


class Uninterrupted:
    """Puts Ctrl-C off until the block is over, in the main thread, where it would be raised anywhere in between.

    A handler that is not Python's, or none, is left alone.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._pending = False

    def __enter__(self) -> Uninterrupted:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before) and not isinstance(before, signal.Handlers):
                signal.signal(signal.SIGINT, self._put_off)
                self._before = before
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            signal.signal(signal.SIGINT, before)
            if self._pending:
                self._pending = False
                before(signal.SIGINT, None)

    def deliver(self) -> None:
        """Lets it through here, where a long call can be given up."""
        if self._pending:
            self._pending = False
            self._before(signal.SIGINT, None)

    def _put_off(self, number: int, frame: FrameType | None) -> None:
        self._pending = True


class Guard:
    """Lets one thread at a time change a learner, and others predict whenever it is not just changing.

    Parameters
    ----------
    broken
        Why the learner can no longer be used, if so.
    """

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.signals = Uninterrupted()
        self._fresh()
        _guards.add(self)

    def _fresh(self) -> None:
        self._changes = threading.RLock()  # held from the beginning to the end of a change, also while it waits
        self._state = threading.RLock()  # held while the state is in between, or looked at

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The only one who changes the learner."""
        with self._changes:
            yield

    @contextmanager
    def reading(self, *, whole: bool = True) -> Iterator[None]:
        """The only one who looks at the learner, which must be whole, or has it in between."""
        with self._state:
            if whole and self.broken is not None:
                raise BadInput(self.broken)
            yield


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _free_all() -> None:
    """In a forked process: threads that held locks are not there."""
    for guard in list(_guards):
        guard._fresh()


os.register_at_fork(after_in_child=_free_all)
