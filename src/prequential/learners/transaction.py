"""Locks between the threads that use a learner, and Ctrl-C deferred while a learner changes."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from prequential.errors import BadInput


class Uninterrupted:
    """Defers Ctrl-C until the block is over, in the main thread, where it could be raised between any two lines.

    A handler that was not set from Python is left alone.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._pending = False

    def __enter__(self) -> Uninterrupted:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before) and not isinstance(before, signal.Handlers):
                signal.signal(signal.SIGINT, self._defer)
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
        """Raises a deferred Ctrl-C here, where a long call can be abandoned."""
        if self._pending:
            self._pending = False
            self._before(signal.SIGINT, None)

    def _defer(self, number: int, frame: FrameType | None) -> None:
        self._pending = True


class Guard:
    """Lets one thread at a time change a learner, while others predict between its changes.

    Parameters
    ----------
    broken
        Why the learner can no longer be used, if so.
    """

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.mend: Callable[[], None] | None = None  # repairs it, if that is possible
        self.signals = Uninterrupted()
        self._new_locks()
        _guards.add(self)

    def _new_locks(self) -> None:
        self._changes = threading.RLock()  # held during a whole change, also while that waits for something
        self._state = threading.RLock()  # held while the state is inconsistent, or being read
        self._writer_waits = threading.Lock()  # held by a writer that waits for the state: readers let it go first
        self._owner: int | None = None  # the thread that holds the state

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the right to change the learner; others may still predict."""
        with self._changes:
            yield

    @contextmanager
    def reading(self, *, whole: bool = True) -> Iterator[None]:
        """Holds the state for reading; a learner that failed inside a change is refused, unless not `whole`."""
        if self._writer_waits.locked() and self._owner != threading.get_ident():
            with self._writer_waits:  # otherwise threads that predict all the time would never let it learn
                pass
        with self._held(whole):
            yield

    @contextmanager
    def inside(self, *, whole: bool = True) -> Iterator[None]:
        """Holds the state for a change; to be used inside `changing`."""
        if self._owner == threading.get_ident():
            with self._held(whole):
                yield
            return
        with self._writer_waits:
            self._state.acquire()
        try:
            with self._held(whole):
                yield
        finally:
            self._state.release()

    @contextmanager
    def _held(self, whole: bool) -> Iterator[None]:
        with self._state:
            before, self._owner = self._owner, threading.get_ident()
            try:
                if whole and self.broken is not None:
                    self._try_repair(self.broken)
                yield
            finally:
                self._owner = before

    def _try_repair(self, broken: str) -> None:
        if self.mend is None:
            raise BadInput(broken)
        try:
            self.mend()
        except Exception:
            raise BadInput(broken) from None
        self.broken = None


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _free_all() -> None:
    """In a forked process: the threads that held locks do not exist there."""
    for guard in list(_guards):
        guard._new_locks()


os.register_at_fork(after_in_child=_free_all)
