"""Reading the replayed chunks of a turn: each when its step comes, or ahead of the steps where reading is slow."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Read = TypeVar("Read")

SLOW = 1e-3  # seconds from which on a read is worth handing to a thread, which takes about a tenth of that
AHEAD = 2  # chunks that wait for their steps at most, the one that is being read included
AGAIN = 32  # after so many turns it is measured again how long a read takes alone


class Reader:
    """Reads for one turn after the other, in a thread beside the steps wherever reads took long in the last turns.

    The same is read in the same order either way, never two at a time, and nothing is being read when a turn is over. So
    what is decided by the clock, which is not the same every time, changes no result.

    Parameters
    ----------
    slow
        Seconds from which on reads count as slow.

    Examples
    --------
    >>> reader = Reader()
    >>> with reader.turn(lambda number: number * 10, 3) as read:
    ...     list(read)
    [0, 10, 20]
    """

    def __init__(self, slow: float = SLOW) -> None:
        self.slow = slow
        self._threaded = 0  # turns still to be read in a thread before a read is measured again

    @contextmanager
    def turn(self, read: Callable[[int], Read], count: int) -> Iterator[Iterator[Read]]:
        """Gives what `read` makes of 0..count-1, one after the other; what it raises is raised in its place."""
        if self._threaded and count:
            self._threaded -= 1
            # of each turn: starting a thread takes little where reads are slow, and no thread outlives its work
            with ThreadPoolExecutor(1, "read-ahead") as thread:
                try:
                    yield _ahead(thread, read, count)
                finally:  # on leaving, the read under way is waited for
                    thread.shutdown(wait=False, cancel_futures=True)
        else:
            seconds: list[float] = []
            yield _timed(read, count, seconds)
            # measured only here: beside the steps, a read takes longer than it would alone
            if seconds and statistics.median(seconds) >= self.slow:
                self._threaded = AGAIN


def _timed(read: Callable[[int], Read], count: int, seconds: list[float]) -> Iterator[Read]:
    for number in range(count):
        begun = time.perf_counter()
        made = read(number)
        seconds.append(time.perf_counter() - begun)
        yield made


def _ahead(thread: ThreadPoolExecutor, read: Callable[[int], Read], count: int) -> Iterator[Read]:
    broken = False

    def next_one(number: int) -> Read:
        nonlocal broken
        if broken:  # as without a thread, nothing is read after what cannot be read
            raise CancelledError
        try:
            return read(number)
        except BaseException:
            broken = True
            raise

    def taken() -> Iterator[Read]:
        for number in range(AHEAD, count + AHEAD):
            made = waiting.popleft().result()
            if number < count:
                waiting.append(thread.submit(next_one, number))
            yield made

    waiting: deque[Future[Read]] = deque(thread.submit(next_one, number) for number in range(min(AHEAD, count)))
    return taken()
