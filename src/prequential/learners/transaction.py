"""What keeps a learner whole: locks between threads, and Ctrl-C put off while it changes."""

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
        self.mend: Callable[[], None] | None = None  # what may make it whole again
        self.signals = Uninterrupted()
        self._fresh()
        _guards.add(self)

    def _fresh(self) -> None:
        self._changes = threading.RLock()  # held from the beginning to the end of a change, also while it waits
        self._state = threading.RLock()  # held while the state is in between, or looked at
        self._door = (
            threading.Lock()
        )  # held by who waits for the state to change it: those who predict let him go first
        self._owner: int | None = None  # the thread that holds the state

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The only one who changes the learner."""
        with self._changes:
            yield

    @contextmanager
    def reading(self, *, whole: bool = True) -> Iterator[None]:
        """The only one who looks at the learner, which must be whole."""
        if self._door.locked() and self._owner != threading.get_ident():
            with self._door:  # otherwise threads that predict all the time would never let it learn
                pass
        with self._held(whole):
            yield

    @contextmanager
    def inside(self, *, whole: bool = True) -> Iterator[None]:
        """The only one who has the learner in between; to be used inside `changing`."""
        if self._owner == threading.get_ident():
            with self._held(whole):
                yield
            return
        with self._door:
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
                    self._try_again(self.broken)
                yield
            finally:
                self._owner = before

    def _try_again(self, broken: str) -> None:
        if self.mend is None:
            raise BadInput(broken)
        try:
            self.mend()
        except Exception:
            raise BadInput(broken) from None
        self.broken = None


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _free_all() -> None:
    """In a forked process: threads that held locks are not there."""
    for guard in list(_guards):
        guard._fresh()


os.register_at_fork(after_in_child=_free_all)
