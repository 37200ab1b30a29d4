"""Locks between the threads that use a learner, and Ctrl-C deferred while a learner changes."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from prequential.errors import BadInput
from prequential.storage.platforms import at_fork

try:  # the functions behind those of `signal`, which turn every number into an enum: 15 µs for each example
    from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
    from _signal import signal as _setsignal
except ImportError:  # not CPython
    _getsignal, _setsignal = signal.getsignal, signal.signal
_INTERRUPT = int(signal.SIGINT)


class Uninterrupted:
    """Defers Ctrl-C until the block is over, in the main thread, where it could be raised between any two lines.

    A handler that was not set from Python is left alone.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._pending = False

    def __enter__(self) -> Uninterrupted:
        if threading.get_ident() == threading.main_thread().ident:
            before = _getsignal(_INTERRUPT)
            if callable(before):  # else it is a number: the default, or that it is ignored
                _setsignal(_INTERRUPT, self._defer)
                self._before = before
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            _setsignal(_INTERRUPT, before)
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

    def changing(self) -> AbstractContextManager[Any]:
        """Holds the right to change the learner; others may still predict."""
        return self._changes

    def reading(self, *, whole: bool = True) -> AbstractContextManager[None]:
        """Holds the state for reading; a learner that failed inside a change is refused, unless not `whole`."""
        return _Held(self, whole, writes=False)

    def inside(self, *, whole: bool = True) -> AbstractContextManager[None]:
        """Holds the state for a change; to be used inside `changing`."""
        return _Held(self, whole, writes=True)

    def _has_state(self) -> bool:
        """Whether this thread holds the state."""
        return self._state._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _try_repair(self, broken: str) -> None:
        if self.mend is None:
            raise BadInput(broken)
        try:
            self.mend()
        except Exception:
            raise BadInput(broken) from None
        self.broken = None


class _Held(AbstractContextManager[None]):
    """The state of a guard, held for a block; a generator would take five times as long, several times an example."""

    __slots__ = ("_guard", "_state", "_whole", "_writes")

    def __init__(self, guard: Guard, whole: bool, *, writes: bool) -> None:
        self._guard, self._whole, self._writes = guard, whole, writes

    def __enter__(self) -> None:
        guard = self._guard
        state = self._state = guard._state  # in a forked process the guard gets another one
        if self._writes and not guard._has_state():
            with guard._writer_waits:
                state.acquire()
        else:
            if guard._writer_waits.locked() and not guard._has_state():
                with guard._writer_waits:  # otherwise threads that predict all the time would never let it learn
                    pass
            state.acquire()
        if self._whole and guard.broken is not None:
            try:
                guard._try_repair(guard.broken)
            except BaseException:
                state.release()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.release()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _free_all() -> None:
    """In a forked process: the threads that held locks do not exist there."""
    for guard in list(_guards):
        guard._new_locks()


at_fork(after_in_child=_free_all)
