"""The replay buffer of experience replay: the last examples, first in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from prequential.errors import BadSetting


@dataclass(frozen=True)
class _Undo:
    """The buffer at some moment: its arrays, and what was overwritten in them since."""

    size: int
    x: np.ndarray
    class_ids: np.ndarray
    start: int
    count: int
    overwritten: list[tuple[np.ndarray, np.ndarray, np.ndarray]]


class FIFOBuffer:
    """Keeps the last `size` examples, and draws from them uniformly.

    They keep the dtype they came in. Where dtypes differ (integers first, floats later), the buffer changes to one that
    holds all values without loss.

    Parameters
    ----------
    size
        Capacity in examples; memory is allocated as it fills.

    Examples
    --------
    >>> buffer = FIFOBuffer(3)
    >>> buffer.push(np.arange(5)[:, None], np.array([0, 1, 0, 1, 1]))
    >>> buffer.contents()[0].ravel().tolist()
    [2, 3, 4]
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise BadSetting(f"buffer ({size}) must be at least 1")
        self.size = size
        self._x = np.zeros((0,))
        self._class_ids = np.zeros(0, dtype=np.int64)
        self._start = 0  # index of the oldest
        self._count = 0
        self._undo: _Undo | None = None

    def __len__(self) -> int:
        return self._count

    def push(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Adds examples; the oldest are dropped."""
        dtype = np.result_type(self._x, x) if self._count else x.dtype
        x, class_ids = x[-self.size :], class_ids[-self.size :]
        if dtype != self._x.dtype:
            self._x, self._class_ids = self._x.astype(dtype), self._class_ids.copy()  # both new, as `_undo` expects
        if self._count + len(x) > len(self._class_ids) and len(self._class_ids) < self.size:
            self._allocate(min(self.size, max(64, 2 * (self._count + len(x)))), like=x)
        at = (self._start + self._count + np.arange(len(x))) % len(self._class_ids)
        if self._undo is not None and self._x is self._undo.x:
            self._undo.overwritten.append((at, self._x[at], self._class_ids[at]))
        self._x[at], self._class_ids[at] = x, class_ids
        lost = max(0, self._count + len(x) - len(self._class_ids))
        self._start = (self._start + lost) % len(self._class_ids)
        self._count += len(x) - lost

    def draw(self, random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n examples, each drawn uniformly from what is in the buffer."""
        at = (self._start + random.integers(self._count, size=n)) % len(self._class_ids)
        return self._x[at], self._class_ids[at]

    def contents(self) -> tuple[np.ndarray, np.ndarray]:
        """Everything in it, oldest first."""
        at = (self._start + np.arange(self._count)) % max(len(self._class_ids), 1)
        return self._x[at], self._class_ids[at]

    def begin_undo(self) -> None:
        """From now on, records what is overwritten, so that `undo` can bring it back without a copy of everything."""
        self._undo = _Undo(self.size, self._x, self._class_ids, self._start, self._count, [])

    def undo(self) -> None:
        """Makes the buffer what it was at `begin_undo`."""
        assert self._undo is not None
        then = self._undo
        self.size, self._x, self._class_ids = then.size, then.x, then.class_ids
        self._start, self._count = then.start, then.count
        for at, x, class_ids in reversed(then.overwritten):
            self._x[at], self._class_ids[at] = x, class_ids
        self._undo = None

    def end_undo(self) -> None:
        """Records no longer."""
        self._undo = None

    def resize(self, size: int) -> None:
        """Changes the capacity; a smaller buffer keeps the newest examples."""
        (x, class_ids), undo = self.contents(), self._undo
        self.__init__(size)  # type: ignore[misc]
        self._undo = undo
        if len(class_ids):
            self.push(x, class_ids)

    def state_dict(self) -> dict[str, Any]:
        x, class_ids = self.contents()
        return {"size": self.size, "x": x, "class_ids": class_ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__init__(int(state["size"]))  # type: ignore[misc]
        if len(state["class_ids"]):
            self.push(state["x"], state["class_ids"])

    def _allocate(self, places: int, like: np.ndarray) -> None:
        """Allocates arrays for more examples."""
        x, class_ids = self.contents()
        self._x = np.zeros((places, *like.shape[1:]), dtype=self._x.dtype)
        self._class_ids = np.zeros(places, dtype=np.int64)
        self._start = 0
        if self._count:
            self._x[: self._count], self._class_ids[: self._count] = x, class_ids
