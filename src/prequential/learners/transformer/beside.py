"""A call that runs in another thread while this one goes on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class Beside:
    """Calls something in a thread of its own at once.

    Parameters
    ----------
    call
        What is called. Computing that does not hold Python's lock runs at the same time as what follows.

    Examples
    --------
    >>> done = []
    >>> beside = Beside(lambda: done.append("in another thread"))
    >>> beside.join()
    >>> done
    ['in another thread']
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="beside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        """Waits until it is done, however often that is interrupted, and raises what went wrong in it."""
        interrupt: BaseException | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as raised:
                interrupt = raised
        if interrupt is not None:
            raise interrupt
        if self._error is not None:
            raise self._error
