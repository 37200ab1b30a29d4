"""Time of day that never jumps while the process runs, and a look at whether the system's clock did."""

from __future__ import annotations

import time
from collections.abc import Callable

SHOWN_SECONDS = 600.0  # for how long a jump is shown
LEAST_JUMP = 1.0  # seconds; less is how clocks are kept right


def _elapsed() -> float:
    """Seconds that have passed, also while the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """Seconds since 1970 by the clock of the system when it was made, and from then on by what has passed.

    >>> clock = SteadyClock(wall=lambda: 100.0, elapsed=iter([5.0, 8.0]).__next__)
    >>> clock.now()
    103.0
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed) -> None:
        self._elapsed = elapsed
        self._start = wall() - elapsed()

    def now(self) -> float:
        return self._start + self._elapsed()


STEADY = SteadyClock()


class JumpWatch:
    """Notices when the clock of the system was set.

    >>> wall, passed = iter([100.0, 101.0, 3702.0, 3703.0]).__next__, iter([0.0, 1.0, 2.0, 3.0]).__next__
    >>> watch = JumpWatch(wall, passed)
    >>> watch.look(), watch.look(), watch.problem
    (None, 3600.0, 'the clock of the system was set forward by 3,600 s 1 s ago')
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed) -> None:
        self._wall, self._elapsed = wall, elapsed
        self._offset = self._measure()[0]
        self._jump: tuple[float, float] | None = None  # when, and by how much

    def _measure(self) -> tuple[float, float]:
        passed = self._elapsed()
        return self._wall() - passed, passed

    def look(self) -> float | None:
        """By how many seconds the clock has jumped since the last look; None: it has not."""
        offset, passed = self._measure()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) < LEAST_JUMP:
            return None
        self._jump = (passed, jump)
        return jump

    @property
    def problem(self) -> str | None:
        """The last jump in a sentence, for a while."""
        if self._jump is None:
            return None
        ago, jump = self._measure()[1] - self._jump[0], self._jump[1]
        if ago > SHOWN_SECONDS:
            return None
        return (
            f"the clock of the system was set {'forward' if jump > 0 else 'back'} by {abs(jump):,.0f} s {ago:.0f} s ago"
        )
